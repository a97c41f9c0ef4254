// Runs PyTorch's own caching allocator (libc10_cuda) without a GPU and writes down everything that it does.
//
// The functions of the CUDA runtime and driver that the allocator calls are defined here: addresses are made up,
// bytes are counted against a capacity, events are done when the script says so. No kernel ever runs, so nothing
// else is needed. See README.md for how to build it and for the format of its input and output.

#include <c10/core/DeviceArray.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <string>

namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*func)(DeviceIndex));
}

namespace {

size_t capacity = size_t{80} << 30;
size_t used = 0;
// Segments and reservations come from regions that grow in turn up and down, so that order of creation and order
// of address differ.
uint64_t upper = 0x710000000000;
uint64_t lower = 0x70f000000000;
uint64_t reservations = 0x720000000000;
uint64_t calls = 0;
bool capturing = false;
std::map<uint64_t, size_t> segments;
uint64_t events_made = 16;
uint64_t events_done = 0;
std::map<CUmemGenericAllocationHandle, size_t> pages;
CUmemGenericAllocationHandle next_page = 1;

uint64_t take(size_t size) {
  const uint64_t step = (size + (2u << 20) - 1) & ~uint64_t((2u << 20) - 1);
  if ((calls++ * 7 / 3) % 2 == 0) {
    upper += step;
    return upper - step;
  }
  lower -= step;
  return lower;
}

} // namespace

extern "C" {

cudaError_t cudaMalloc(void** ptr, size_t size) {
  if (used + size > capacity) return cudaErrorMemoryAllocation;
  used += size;
  const uint64_t at = take(size);
  segments[at] = size;
  *ptr = reinterpret_cast<void*>(at);
  return cudaSuccess;
}
cudaError_t cudaFree(void* ptr) {
  if (ptr == nullptr) return cudaSuccess;
  const auto at = segments.find(reinterpret_cast<uint64_t>(ptr));
  if (at == segments.end()) return cudaErrorInvalidValue;
  used -= at->second;
  segments.erase(at);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = capacity - used;
  *total = capacity;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* n) { *n = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int* d) { *d = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "error"; }
const char* cudaGetErrorString(cudaError_t) { return "error"; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  std::memset(p, 0, sizeof(*p));
  p->totalGlobalMem = capacity;
  p->major = 9;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  *e = reinterpret_cast<cudaEvent_t>(new uint64_t(0));
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t) {
  *reinterpret_cast<uint64_t*>(e) = ++events_made;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  return *reinterpret_cast<uint64_t*>(e) <= events_done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* s) {
  *s = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t, cudaStreamCaptureStatus* s, unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
    const cudaGraphEdgeData**, size_t* n) {
#else
cudaError_t cudaStreamGetCaptureInfo_v2(
    cudaStream_t, cudaStreamCaptureStatus* s, unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
    size_t* n) {
#endif
  *s = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id) *id = 1;
  if (n) *n = 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* a, int* b) { *a = 0; *b = -5; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* v) { *v = 13000; return cudaSuccess; }

static CUresult stub_generic() { return CUDA_SUCCESS; }
static CUresult stub_cuDeviceGetAttribute(int* value, int, CUdevice) { *value = 0; return CUDA_SUCCESS; }
static CUresult stub_cuMemAddressReserve(
    CUdeviceptr* at, size_t size, size_t, CUdeviceptr, unsigned long long) {
  *at = reservations;
  std::printf(" reserve %lx %lu 0 0\n", (unsigned long)reservations, (unsigned long)size);
  reservations += (size + (64u << 20)) & ~uint64_t((2u << 20) - 1);
  return CUDA_SUCCESS;
}
static CUresult stub_cuMemCreate(
    CUmemGenericAllocationHandle* handle, size_t size, const void*, unsigned long long) {
  if (used + size > capacity) return CUDA_ERROR_OUT_OF_MEMORY;
  used += size;
  *handle = next_page++;
  pages[*handle] = size;
  return CUDA_SUCCESS;
}
static CUresult stub_cuMemRelease(CUmemGenericAllocationHandle handle) {
  used -= pages[handle];
  pages.erase(handle);
  return CUDA_SUCCESS;
}
static CUresult stub_cuGetErrorString(CUresult, const char** text) {
  *text = "error";
  return CUDA_SUCCESS;
}
cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** f, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  const std::string what = name;
  if (what == "cuMemAddressReserve") *f = reinterpret_cast<void*>(stub_cuMemAddressReserve);
  else if (what == "cuMemCreate") *f = reinterpret_cast<void*>(stub_cuMemCreate);
  else if (what == "cuMemRelease") *f = reinterpret_cast<void*>(stub_cuMemRelease);
  else if (what == "cuGetErrorString") *f = reinterpret_cast<void*>(stub_cuGetErrorString);
  else if (what == "cuDeviceGetAttribute") *f = reinterpret_cast<void*>(stub_cuDeviceGetAttribute);
  else *f = reinterpret_cast<void*>(stub_generic);
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

} // extern "C"

using c10::CachingDeviceAllocator::Stat;
using c10::CachingDeviceAllocator::StatArray;
using c10::CachingDeviceAllocator::TraceEntry;

static cudaStream_t stream_of(int n) {
  return reinterpret_cast<cudaStream_t>(uint64_t(n) * 0x10000);
}

static void print(const Stat& s) {
  std::printf(" %ld/%ld/%ld/%ld", (long)s.current, (long)s.peak, (long)s.allocated, (long)s.freed);
}

static void print(const char* name, const StatArray& all) {
  std::printf("stat %s", name);
  for (const auto& s : all) print(s);
  std::printf("\n");
}

// The counter exists from torch 2.12 on.
template <class Stats>
static long rejections(const Stats& stats) {
  if constexpr (requires { stats.num_oom_rejections; }) {
    return stats.num_oom_rejections;
  } else {
    return 0;
  }
}

static void on_trace(const TraceEntry& t) {
  static const char* names[] = {
      "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
      "segment_map", "segment_unmap", "snapshot", "oom", "annotate"};
  std::printf(
      " %s %lx %lu %lu %lu\n",
      names[t.action_],
      (unsigned long)t.addr_,
      (unsigned long)t.size_,
      (unsigned long)t.stream_ / 0x10000,
      (unsigned long)t.mempool_.second);
}

int main(int argc, char** argv) {
  if (argc > 1) capacity = std::strtoull(argv[1], nullptr, 10);
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  // Keeps the allocator from asking NVML whether memory can be shared between machines.
  c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::set_expandable_segments_handle_type(
      c10::cuda::CUDACachingAllocator::Expandable_Segments_Handle_Type::POSIX_FD);
  c10::cuda::detail::init_p2p_access_cache(1);
  auto* torch = c10::cuda::CUDACachingAllocator::get();
  torch->init(1);
  torch->attachAllocatorTraceTracker(on_trace);
  std::map<int, c10::DataPtr> live;
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.empty()) continue;
    std::printf("%s\n", line.c_str());
    std::istringstream in(line);
    std::string op;
    in >> op;
    if (op == "torch" || op == "capacity" || op == "set") continue;
    uint64_t a = 0, b = 0, c = 0;
    if (op != "conf") in >> a >> b >> c;
    const c10::MempoolId_t pool{0, a};
    if (op == "a") {
      c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(stream_of(c), 0));
      try {
        live[a] = torch->allocate(b);
      } catch (const c10::OutOfMemoryError& e) {
        if (std::strstr(e.what(), "preemptively") != nullptr) std::printf(" rejected\n");
      }
    } else if (op == "f") {
      live.erase(a);
    } else if (op == "r") {
      torch->recordStream(live[a], c10::cuda::getStreamFromExternal(stream_of(b), 0));
    } else if (op == "done") {
      events_done = events_made;
    } else if (op == "e") {
      torch->emptyCache({0, a});
    } else if (op == "b") {
      torch->beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
    } else if (op == "n") {
      torch->endAllocateToPool(0, pool);
    } else if (op == "l") {
      torch->releasePool(0, pool);
    } else if (op == "o") {
      if (b) torch->setUseOnOOM(0, pool, true);
      if (c) torch->setNoSplit(0, pool);
    } else if (op == "cb") {
      capturing = true;
#if ORACLE_MARKS_CAPTURES
      torch->markCaptureBegin(0);
#endif
    } else if (op == "ce") {
#if ORACLE_MARKS_CAPTURES
      torch->markCaptureEnd(0);
#endif
      capturing = false;
    } else if (op == "peaks") {
      torch->resetPeakStats(0);
    } else if (op == "conf") {
      std::string text;
      std::getline(in >> std::ws, text);
      c10::CachingAllocator::setAllocatorSettings(text);
    }
  }
  const auto stats = torch->getDeviceStats(0);
  print("allocation", stats.allocation);
  print("allocated_bytes", stats.allocated_bytes);
  print("active", stats.active);
  print("active_bytes", stats.active_bytes);
  print("requested_bytes", stats.requested_bytes);
  print("segment", stats.segment);
  print("reserved_bytes", stats.reserved_bytes);
  print("inactive_split", stats.inactive_split);
  print("inactive_split_bytes", stats.inactive_split_bytes);
  std::printf("stat oversize_allocations");
  print(stats.oversize_allocations);
  std::printf("\nstat oversize_segments");
  print(stats.oversize_segments);
  std::printf(
      "\nstat counts %ld %ld %ld %ld %ld %ld\n",
      (long)stats.num_alloc_retries,
      (long)stats.num_ooms,
      rejections(stats),
      (long)stats.num_sync_all_streams,
      (long)stats.num_device_alloc,
      (long)stats.num_device_free);
  const auto shown = torch->snapshot({0, 0}, false);
  for (const auto& s : shown.segments) {
    std::printf(
        "segment %lx %lu %s %lu %lu %d",
        (unsigned long)s.address,
        (unsigned long)s.total_size,
        s.is_large ? "large" : "small",
        (unsigned long)s.stream / 0x10000,
        (unsigned long)s.owner_private_pool_id.second,
        (int)s.is_expandable);
    for (const auto& block : s.blocks) {
      const char state = block.allocated ? 'a' : block.active ? 'p' : 'f';
      std::printf(" %c%lu", state, (unsigned long)block.size);
    }
    std::printf("\n");
  }
  std::fflush(stdout);
  std::_Exit(0);
}
