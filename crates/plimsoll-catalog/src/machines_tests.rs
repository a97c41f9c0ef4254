//! Tests of `--gpu`: whole GPUs, slices, counts, capacities, and every spelling of the measured cases.

use super::*;
use crate::gpus::gpus;
use proptest::prelude::*;

fn id_and_count(text: &str) -> (String, u64) {
    let machine = parse_machine(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    (machine.gpu.map_or_else(|| "-".to_owned(), |gpu| gpu.id.clone()), machine.count)
}

#[test]
fn reads_names_counts_and_capacities() {
    for (text, id, count) in [
        ("h100-80g", "h100-80g", 1),
        ("h100-80g*8", "h100-80g", 8),
        ("8x h100-80g", "h100-80g", 8),
        ("8xH100", "h100-80g", 8),
        ("NVIDIA GB10 x2", "dgx-spark", 2),
        ("rtx-4090 x 2", "rtx-4090", 2),
        ("rtx-4090x2", "rtx-4090", 2),
        ("mi300x", "mi300x", 1),
        ("mi300x*8", "mi300x", 8),
        ("8 x MI300X", "mi300x", 8),
        ("3090", "rtx-3090", 1),
        ("23.6GiB", "-", 1),
        ("80GB*4", "-", 4),
        ("4 x 24 GiB", "-", 4),
    ] {
        assert_eq!(id_and_count(text), (id.to_owned(), count), "{text}");
    }
    let capacity = parse_machine("23.6GiB").unwrap();
    assert_eq!(capacity.usable, "23.6GiB".parse().unwrap());
    assert_eq!((capacity.sms(), capacity.bandwidth_gbps()), (None, None));
    assert!(capacity.check_dtype(DType::Nvfp4).is_ok());
}

#[test]
fn refuses_with_the_part_that_is_wrong() {
    for (text, expected) in [
        ("", "the GPU is empty"),
        ("  ", "the GPU is empty"),
        ("24", "24GiB"),
        ("h100-80g*0", "`0` is not a number of GPUs"),
        ("h100-80g*many", "`many` is not a number of GPUs"),
        ("h100-80g*99999999999999999999", "is not a number of GPUs"),
        ("1GiB*1000001", "1 to 1000000"),
        ("0GiB", "not accepted"),
        ("12MiB", "between 64.00 MiB and 64.00 TiB"),
        ("900TiB", "not accepted"),
        ("24gallonsb", "not a known GPU"),
        ("24fib", "the unit is unknown"),
        ("rtx-4090 + rtx-3090", "mixes GPUs"),
        ("rtx-4090:1g.5gb", "rtx-4090 has no MIG slices"),
        ("24GiB:1g.5gb", "has no MIG slices"),
        ("a100-80g:mig-9g.90gb", "it has 1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb"),
        ("h1000-80g*8", "did you mean h100-80g"),
    ] {
        let error = parse_machine(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn slices_have_their_own_memory_and_share() {
    let slice = parse_machine("h100-80g:mig-3g.40gb*2").unwrap();
    assert_eq!((slice.usable, slice.count), (Bytes::mib(40_448), 2));
    assert_eq!((slice.sms(), slice.bandwidth_gbps()), (Some(60), Some(1675)));
    assert!(!slice.peer_to_peer() && parse_machine("h100-80g*2").unwrap().peer_to_peer());
    assert_eq!(slice.label(), "h100-80g:3g.40gb*2");
    for text in ["a100-80g:1g.10gb", "a100-80g:1g.10gb+me", "NVIDIA A100-SXM4-80GB MIG 1g.10gb"] {
        assert_eq!(parse_machine(text).unwrap().usable, Bytes::mib(9728), "{text}");
    }
    assert_eq!(
        parse_machine("gb200:3g.95gb").unwrap().usable,
        parse_machine("gb200:3g.93gb").unwrap().usable
    );
    let derived = parse_machine("b300:1g.34gb").unwrap();
    assert!(derived.assumptions[0].contains("fraction"), "{:?}", derived.assumptions);
}

#[test]
fn free_memory_is_checked_against_the_card() {
    let card = parse_machine("rtx-4090").unwrap();
    let shared = card.clone().with_free(Bytes::gib(19)).unwrap();
    assert_eq!((card.budget(), shared.budget()), (card.usable, Bytes::gib(19)));
    assert_eq!(card.clone().with_free(Bytes::ZERO), Err(MachineError::NoFree));
    let error = card.with_free(Bytes::gib(40)).unwrap_err().to_string();
    assert_eq!(error, "free memory of 40.00 GiB is not possible on rtx-4090: it has 23.65 GiB");
}

#[test]
fn a_reading_replaces_the_catalogue() {
    let reading = "79.3GiB".parse().unwrap();
    let card = parse_machine("A100").unwrap().with_usable(reading).unwrap();
    assert_eq!((card.budget(), card.usable_low, card.usable_high), (reading, reading, reading));
    assert!(card.assumptions.is_empty());
    assert!(card.clone().with_usable(Bytes::ZERO).is_err());
    assert_eq!(card.with_free(Bytes::gib(50)).unwrap().budget(), Bytes::gib(50));
}

#[test]
fn assumptions_are_said() {
    for (text, expected) in [
        ("A100", "a100-80g"),
        ("rtx-3080", "derived from the printed total"),
        ("dgx-spark", "--free"),
        ("V100-16GB/32GB", "v100-16g is assumed"),
    ] {
        let said = parse_machine(text).unwrap().assumptions;
        assert!(said.iter().any(|one| one.contains(expected)), "{text}: {said:?}");
    }
    assert!(parse_machine("h100-80g").unwrap().assumptions.is_empty());
}

/// Every way in which the sources of the measured cases write a GPU.
#[test]
fn spellings_of_the_measured_cases_resolve() {
    for (text, id, count) in SPELLINGS {
        assert_eq!(id_and_count(text), ((*id).to_owned(), *count), "{text}");
    }
    for text in MIXED {
        assert!(matches!(parse_machine(text), Err(MachineError::Mixed { .. })), "{text}");
    }
}

const MIXED: &[&str] = &[
    "2x NVIDIA GeForce RTX 3090 + NVIDIA RTX A4000",
    "NVIDIA GeForce RTX 4090 + NVIDIA GeForce RTX 5090",
    "NVIDIA GeForce RTX 5090 + 2x NVIDIA GeForce RTX 4090 + NVIDIA RTX A6000",
    "NVIDIA GeForce RTX 5090 + NVIDIA GeForce RTX 4090",
    "RTX 4070 Ti + RTX 3090 Ti",
];

const SPELLINGS: &[(&str, &str, u64)] = &[
    ("15x NVIDIA GeForce RTX 3090", "rtx-3090", 15),
    ("16x NVIDIA GeForce RTX 3090", "rtx-3090", 16),
    ("2x NVIDIA GeForce RTX 3090", "rtx-3090", 2),
    ("2x NVIDIA GeForce RTX 4090", "rtx-4090", 2),
    ("2x NVIDIA GeForce RTX 5090", "rtx-5090", 2),
    ("2x NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada", 2),
    ("2x NVIDIA RTX A6000", "rtx-a6000", 2),
    ("2x Tesla T4", "t4", 2),
    ("3x NVIDIA GeForce RTX 3090", "rtx-3090", 3),
    ("A10", "a10", 1),
    ("A100", "a100-40g", 1),
    ("A100 (memory size not stated)", "a100-40g", 1),
    ("A100 (memory size not stated; 60 GiB peak implies 80GB)", "a100-40g", 1),
    ("A100 40GB", "a100-40g", 1),
    ("A100 40GB (nominal)", "a100-40g", 1),
    ("A100 80GB", "a100-80g", 1),
    ("A100 80GB PCIe", "a100-pcie-80g", 1),
    ("A100-40GB", "a100-40g", 1),
    ("A100-80GB", "a100-80g", 1),
    ("A100-80GB (size not stated)", "a100-80g", 1),
    ("A100-PCIE-40GB", "a100-pcie-40g", 1),
    ("A100-PCIE-80GB", "a100-pcie-80g", 1),
    ("A100-SXM-40GB", "a100-40g", 1),
    ("A100-SXM-80GB", "a100-80g", 1),
    ("A100-SXM-80GB (DGX A100)", "a100-80g", 1),
    ("A100-SXM4-40GB", "a100-40g", 1),
    ("A100-SXM4-80GB", "a100-80g", 1),
    ("A10G", "a10g", 1),
    ("A10G 24GB", "a10g", 1),
    ("A40", "a40", 1),
    ("A800-80GB", "a800-80g", 1),
    ("AMD Radeon RX 9070 XT", "rx-9070-xt", 1),
    ("Apple M5 (Metal)", "apple-m5-16g", 1),
    ("Ascend 910 (32GB)", "ascend-910-32g", 1),
    ("B200", "b200", 1),
    ("B200 (power limited)", "b200", 1),
    ("B200-180GB (DGX B200)", "b200", 1),
    ("B300", "b300", 1),
    ("GB200", "gb200", 1),
    ("GB200-192GB", "gb200", 1),
    ("GB300", "gb300", 1),
    ("Gaudi-32GB", "gaudi", 1),
    ("Gaudi2-96GB", "gaudi2", 1),
    ("Gaudi3-128GB", "gaudi3", 1),
    ("GeForce GTX 1080 Ti", "gtx-1080-ti", 1),
    ("GeForce RTX 2070 with Max-Q Design", "rtx-2070-max-q", 1),
    ("GeForce RTX 2080 Super with Max-Q Design", "rtx-2080-super-max-q", 1),
    ("GeForce RTX 2080 Ti", "rtx-2080-ti", 1),
    ("GeForce RTX 2080 with Max-Q Design", "rtx-2080-max-q", 1),
    ("GeForce RTX 3070", "rtx-3070", 1),
    ("GeForce RTX 3080", "rtx-3080-10g", 1),
    ("GeForce RTX 3080 Laptop GPU", "rtx-3080-laptop", 1),
    ("GeForce RTX 3090", "rtx-3090", 1),
    ("GeForce RTX 4090", "rtx-4090", 1),
    ("GeForce RTX 5090", "rtx-5090", 1),
    ("H100 80GB", "h100-80g", 1),
    ("H100 96GB", "h100-96g", 1),
    ("H100 96GB HBM2e", "h100-96g", 1),
    ("H100 SXM 80GB", "h100-80g", 1),
    ("H100-SXM-80GB", "h100-80g", 1),
    ("H100-SXM-80GB (DGX H100)", "h100-80g", 1),
    ("H100-SXM-96GB-HBM2e-500W", "h100-96g", 1),
    ("H100/A100 80GB", "h100-80g", 1),
    ("H200", "h200", 1),
    ("H200-SXM-141GB", "h200", 1),
    ("H800 PCIe 80GB", "h800-pcie-80g", 1),
    ("L40S 48GB", "l40s", 1),
    ("L40S 48GB (nominal)", "l40s", 1),
    ("NVIDIA A10", "a10", 1),
    ("NVIDIA A100 80GB PCIe", "a100-pcie-80g", 1),
    ("NVIDIA A100-PCIE-40GB", "a100-pcie-40g", 1),
    ("NVIDIA A100-SXM4-40GB", "a100-40g", 1),
    ("NVIDIA A100-SXM4-80GB", "a100-80g", 1),
    ("NVIDIA A800", "a800-80g", 1),
    ("NVIDIA B200", "b200", 1),
    ("NVIDIA GB10 (DGX Spark, unified memory)", "dgx-spark", 1),
    ("NVIDIA GB10 (unified memory)", "dgx-spark", 1),
    ("NVIDIA GB10 x2", "dgx-spark", 2),
    ("NVIDIA GH200 480GB", "gh200-96g", 1),
    ("NVIDIA GTX 1660 Ti", "gtx-1660-ti", 1),
    ("NVIDIA GeForce RTX 2080 Ti 11GB", "rtx-2080-ti", 1),
    ("NVIDIA GeForce RTX 3070", "rtx-3070", 1),
    ("NVIDIA GeForce RTX 3090", "rtx-3090", 1),
    ("NVIDIA GeForce RTX 3090 Ti", "rtx-3090-ti", 1),
    ("NVIDIA GeForce RTX 4070 (8 GB laptop)", "rtx-4070-laptop", 1),
    ("NVIDIA GeForce RTX 4080 (WSL)", "rtx-4080", 1),
    ("NVIDIA GeForce RTX 4090", "rtx-4090", 1),
    ("NVIDIA GeForce RTX 5090", "rtx-5090", 1),
    ("NVIDIA H100 80GB", "h100-80g", 1),
    ("NVIDIA H100 80GB HBM3", "h100-80g", 1),
    ("NVIDIA H100 PCIe", "h100-pcie-80g", 1),
    ("NVIDIA H200", "h200", 1),
    ("NVIDIA H200 NVL", "h200-nvl", 1),
    ("NVIDIA Jetson AGX Orin (unified memory)", "jetson-orin-32g", 1),
    ("NVIDIA RTX 3050 6GB Laptop (WSL2)", "rtx-3050-6g-laptop", 1),
    ("NVIDIA RTX 3070 Ti 8GB", "rtx-3070-ti", 1),
    ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada", 1),
    ("NVIDIA RTX A4000", "rtx-a4000", 1),
    ("NVIDIA RTX A4500", "rtx-a4500", 1),
    ("NVIDIA RTX A5500", "rtx-a5500", 1),
    ("NVIDIA RTX A6000", "rtx-a6000", 1),
    ("NVIDIA RTX PRO 6000 Blackwell", "rtx-pro-6000", 1),
    ("NVIDIA Tegra X1 (Jetson Nano 4GB)", "jetson-nano-4g", 1),
    ("NVIDIA Tesla T4", "t4", 1),
    ("NVIDIA Thor (unified memory)", "jetson-thor", 1),
    ("P100", "p100-16g", 1),
    ("Quadro GV100 32GB", "gv100-32g", 1),
    ("Quadro RTX 5000", "quadro-rtx-5000", 1),
    ("Quadro RTX 6000", "quadro-rtx-6000", 1),
    ("Quadro RTX 8000", "quadro-rtx-8000", 1),
    ("RTX 3070", "rtx-3070", 1),
    ("RTX 3090", "rtx-3090", 1),
    ("RTX 3090 24GB", "rtx-3090", 1),
    ("RTX 4070 Ti SUPER", "rtx-4070-ti-super", 1),
    ("RTX 4090", "rtx-4090", 1),
    ("RTX A4000", "rtx-a4000", 1),
    ("RTX A5000", "rtx-a5000", 1),
    ("RTX A6000", "rtx-a6000", 1),
    ("RTX PRO 6000 96GB", "rtx-pro-6000", 1),
    ("RTX PRO 6000 Blackwell 96GB", "rtx-pro-6000", 1),
    ("RTX PRO 6000 Blackwell Max-Q", "rtx-pro-6000-max-q", 1),
    ("RTX PRO 6000 Blackwell Server", "rtx-pro-6000", 1),
    ("T4-16GB", "t4", 1),
    ("TITAN RTX", "titan-rtx", 1),
    ("TITAN V 12GB", "titan-v", 1),
    ("Tesla V100-SXM2-16GB", "v100-16g", 1),
    ("Tesla V100-SXM2-32GB", "v100-32g", 1),
    ("Titan X Pascal", "titan-xp", 1),
    ("V100", "v100-16g", 1),
    ("V100 (CUDA arch 700)", "v100-16g", 1),
    ("V100 16GB", "v100-16g", 1),
    ("V100 16GB (nominal, from the 15.77 GiB total)", "v100-16g", 1),
    ("V100 32GB", "v100-32g", 1),
    ("V100-16GB/32GB", "v100-16g", 1),
    ("V100-32GB", "v100-32g", 1),
    ("V100-SXM-16GB", "v100-16g", 1),
    ("V100-SXM-32GB", "v100-32g", 1),
    ("V100-SXM-32GB (DGX-2)", "v100-32g", 1),
    ("V100-SXM-32GB (DGX-2, memory size not stated)", "v100-32g", 1),
    ("V100/Titan class", "v100-16g", 1),
    ("a100_40gb", "a100-40g", 1),
    ("a100_80gb", "a100-80g", 1),
    ("h100_80gb", "h100-80g", 1),
];

/// The fuzz body of the machine parser: any bytes, no panic, and a machine reads back from its label.
pub(super) fn fuzz_machine(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(machine) = parse_machine(&text) {
        let again = parse_machine(&machine.label()).expect("a label is a machine");
        assert_eq!((again.gpu, again.slice), (machine.gpu, machine.slice));
        assert_eq!((again.count, again.usable), (machine.count, machine.usable));
    }
}

proptest! {
    #[test]
    fn any_text_is_answered(text in "\\PC{0,60}") {
        fuzz_machine(text.as_bytes());
    }

    #[test]
    fn pieces_of_the_grammar_are_answered(
        text in "([0-9]{0,12}[x* ]?)?(h100-80g|A100|rtx-|24|1e9|MIG |:|mig-|3g\\.40gb|GiB|GB|\u{d7}|\\*|x|\\+|/|\\(| ){0,6}[0-9]{0,22}"
    ) {
        fuzz_machine(text.as_bytes());
    }

    #[test]
    fn labels_read_back(index in 0usize..150, count in 1u64..=MAX_COUNT) {
        let gpu = gpus().nth(index).unwrap();
        let text = format!("{}*{count}", gpu.id);
        let machine = parse_machine(&text).unwrap();
        prop_assert_eq!(machine.gpu.map(|gpu| gpu.id.as_str()), Some(gpu.id.as_str()));
        prop_assert_eq!(machine.count, count);
        fuzz_machine(machine.label().as_bytes());
    }

    #[test]
    fn capacities_read_back(bytes in MIN_CAPACITY.get()..=MAX_CAPACITY.get()) {
        let machine = parse_machine(&format!("{bytes}B")).unwrap();
        prop_assert_eq!(machine.usable.get(), bytes);
    }
}

#[test]
fn fuzz_seeds() {
    for seed in [
        &b"h100-80g*8"[..],
        b"\xff\xfe",
        b"x",
        b"*",
        b"8x",
        b"x8",
        b"*8",
        b":",
        b"::",
        b"1x:",
        b"0",
        b"a100-80g:3g.40gb*7",
        b"a100-80g:",
        b"24GiB*",
        b"  MIG  ",
        b"1/1",
        b"/",
        b"(",
        b"()",
        b"9x9x9",
    ] {
        fuzz_machine(seed);
    }
    fuzz_machine(&vec![b'9'; 5000]);
    fuzz_machine(&vec![b'('; 5000]);
}
