// Drives the CPU arena of ONNX Runtime through its C API and prints what it answers.
//
//   g++ -std=c++17 record.cpp -ldl -o record
//   ./record libonnxruntime.so.1.32.0 relu.onnx max_mem=0 arena_extend_strategy=0 < operations
//
// Operations: `a N` allocates, `r N` reserves, `f I` frees the I-th of them, `s` shrinks by a run of the model (one
// Relu of one float from x to y). Output: operation, number, address (0 for none), then the arena's own figures.
// The function table of the C API only ever grows at its end; these are the places of what is used.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

enum Place {
  kGetErrorMessage = 2, kCreateEnv = 3, kCreateSession = 7, kRun = 9, kCreateSessionOptions = 10,
  kCreateRunOptions = 39, kCreateTensorWithData = 49, kCreateCpuMemoryInfo = 69, kAddSessionConfigEntry = 130,
  kCreateAllocator = 131, kCreateAndRegisterAllocator = 144, kCreateArenaCfgV2 = 164, kAddRunConfigEntry = 165,
  kGetKeyValue = 297,
};

struct Allocator {
  uint32_t version;
  void* (*Alloc)(Allocator*, size_t);
  void (*Free)(Allocator*, void*);
  const void* (*Info)(const Allocator*);
  void* (*Reserve)(Allocator*, size_t);
  void* (*GetStats)(const Allocator*, void**);
};

static void** api;

template <class... Parameters>
void call(Place place, Parameters... parameters) {
  void* status = reinterpret_cast<void* (*)(Parameters...)>(api[place])(parameters...);
  if (!status) return;
  fprintf(stderr, "%s\n", reinterpret_cast<const char* (*)(void*)>(api[kGetErrorMessage])(status));
  exit(1);
}

int main(int count, char** words) {
  void* library = count > 2 ? dlopen(words[1], RTLD_NOW) : nullptr;
  if (!library) return fprintf(stderr, "library and model are missing\n"), 1;
  struct Base { void* (*GetApi)(uint32_t); };
  Base* base = reinterpret_cast<Base* (*)()>(dlsym(library, "OrtGetApiBase"))();
  api = static_cast<void**>(base->GetApi(25));

  void *env, *memory, *config, *options, *session;
  call<int, const char*, void**>(kCreateEnv, 3, "record", &env);
  call<int, int, void**>(kCreateCpuMemoryInfo, 1, 0, &memory);
  std::vector<std::string> names;
  std::vector<size_t> values;
  for (int i = 3; i < count; i++) {
    std::string word = words[i];
    names.push_back(word.substr(0, word.find('=')));
    values.push_back(strtoull(word.c_str() + word.find('=') + 1, nullptr, 10));
  }
  std::vector<const char*> keys;
  for (auto& name : names) keys.push_back(name.c_str());
  call<const char* const*, const size_t*, size_t, void**>(kCreateArenaCfgV2, keys.data(), values.data(), keys.size(), &config);
  call<void*, void*, void*>(kCreateAndRegisterAllocator, env, memory, config);
  call<void**>(kCreateSessionOptions, &options);
  call<void*, const char*, const char*>(kAddSessionConfigEntry, options, "session.use_env_allocators", "1");
  call<void*, const char*, void*, void**>(kCreateSession, env, words[2], options, &session);
  Allocator* arena;
  call<void*, void*, Allocator**>(kCreateAllocator, session, memory, &arena);

  static float in[1], out[1];
  static int64_t shape[1] = {1};
  void *x, *y, *run;
  call<void*, void*, size_t, int64_t*, size_t, int, void**>(kCreateTensorWithData, memory, in, 4, shape, 1, 1, &x);
  call<void*, void*, size_t, int64_t*, size_t, int, void**>(kCreateTensorWithData, memory, out, 4, shape, 1, 1, &y);
  call<void**>(kCreateRunOptions, &run);
  call<void*, const char*, const char*>(kAddRunConfigEntry, run, "memory.enable_memory_arena_shrinkage", "cpu:0");

  std::vector<void*> blocks;
  char line[64];
  while (fgets(line, sizeof line, stdin)) {
    size_t n = strtoull(line + 1, nullptr, 10);
    void* block = nullptr;
    const char *input[] = {"x"}, *output[] = {"y"};
    switch (line[0]) {
      case 'a':
        try { block = arena->Alloc(arena, n); } catch (...) {}  // out of memory
        blocks.push_back(block);
        break;
      case 'r': blocks.push_back(block = arena->Reserve(arena, n)); break;
      case 'f': arena->Free(arena, blocks[n]); break;
      case 's':
        call<void*, void*, const char**, void**, size_t, const char**, size_t, void**>(
            kRun, session, run, input, &x, 1, output, 1, &y);
    }
    void* pairs;
    arena->GetStats(arena, &pairs);
    auto get = [&](const char* key) {
      return reinterpret_cast<const char* (*)(void*, const char*)>(api[kGetKeyValue])(pairs, key);
    };
    printf("%c %zu %llu %s %s %s %s %s\n", line[0], n, (unsigned long long)block, get("InUse"),
           get("TotalAllocated"), get("MaxInUse"), get("NumArenaExtensions"), get("NumArenaShrinkages"));
  }
}
