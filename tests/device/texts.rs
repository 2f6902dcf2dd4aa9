//! Texts that only a device runs still compile: the plain read, and kernels with time stamps.

use amk::bench::ceiling::{WAYS, text};
use amk::codegen::{RenderOptions, render};
use amk::device::{Image, ImageFacts, admit, ptx_bytes};
use amk::engine::{BuildRequest, build};
use amk::image::{ImageCache, symbol_bytes};
use amk::lower::{Knobs, Mode, Shape, lower};
use amk::target::{DEFAULT_ARCHS, DeviceFacts, resolve};
use amk::toolchain::{CompileRequest, FindOptions, Nvrtc, SpillPolicy, find_nvrtc};
use amk_models::Checkpoint;
use amk_schedule_ir::Bucket;
use amk_validator::validate;

fn nvrtc() -> Nvrtc {
    find_nvrtc(&FindOptions::from_env(None))
        .expect("run scripts/test.sh, which fetches NVRTC")
        .nvrtc
}

fn facts(capability: (u32, u32)) -> DeviceFacts {
    DeviceFacts {
        name: "a device".into(),
        capability,
        sm_count: 132,
        shared_per_block: 232_448,
        shared_per_sm: 233_472,
        reserved_shared: 1024,
        registers_per_sm: 65_536,
        threads_per_block: 1024,
        l2_bytes: 60 << 20,
        memory_clock_khz: 0,
        memory_bus_bits: 6144,
        memory_bytes: 1,
        cooperative: true,
    }
}

#[test]
fn the_plain_reads_compile_without_spills() {
    let nvrtc = nvrtc();
    for arch in DEFAULT_ARCHS {
        for (_, unroll) in WAYS {
            let source = text(unroll);
            let request = CompileRequest {
                source: &source,
                name: "read.cu",
                arch,
                options: &[],
                spills: SpillPolicy::Refuse,
            };
            let compiled = nvrtc.compile(&request).unwrap();
            assert!(compiled.ptx.contains("amk_read"));
        }
    }
}

#[test]
fn stamps_are_a_text_of_their_own_and_compile() {
    let shape = Shape::of(&Checkpoint::embedded().unwrap());
    let target = resolve("h200").unwrap().target;
    let bucket = Bucket { first: 0, last: 255 };
    let low = lower(&shape, &target, &Knobs::default(), bucket, Mode::Bf16).unwrap();
    let program = validate(low.program, &target).unwrap();
    let with = RenderOptions { trace: true, ..RenderOptions::default() };
    let (plain, traced) = (
        render(&program, &target, RenderOptions::default()).unwrap(),
        render(&program, &target, with).unwrap(),
    );
    assert!(!plain.text.contains("TRACE_SPAN"), "no stamps unless asked for");
    let request = CompileRequest {
        source: &traced.text,
        name: "traced.cu",
        arch: "sm_90a".parse().unwrap(),
        options: &[],
        spills: SpillPolicy::Report,
    };
    let compiled = nvrtc().compile(&request).unwrap();
    assert!(compiled.ptx.contains("%globaltimer"));
}

/// What `amk trace` and prompts run passes the lint of synchronisation, too.
#[test]
fn traced_and_prefill_kernels_pass_the_lint() {
    let nvrtc = nvrtc();
    let shape = Shape::of(&Checkpoint::embedded().unwrap());
    let target = resolve("h200").unwrap().target;
    let cache = ImageCache::disabled();
    for (tokens, mode, trace) in [
        (1, Mode::Bf16, true),
        (1, Mode::F32, true),
        (16, Mode::Bf16, false),
        (5, Mode::F32, false),
    ] {
        let knobs = Knobs { tokens, ..Knobs::default() };
        let bucket = Bucket { first: 0, last: 255 };
        let low = lower(&shape, &target, &knobs, bucket, mode).unwrap();
        let request = BuildRequest {
            target: &target,
            nvrtc: &nvrtc,
            cache: &cache,
            options: RenderOptions { trace, ..RenderOptions::default() },
            spills: SpillPolicy::Report,
            corrupt: None,
        };
        let built = build(low.program, &request).unwrap();
        assert_eq!(built.source.text.contains("TRACE_SPAN"), trace);
    }
}

/// The PTX of an older target carries the program's hash, and a newer device takes it; a corrupted text compiles,
/// carries the hash all the same, and is for the self-test to find.
#[test]
fn ptx_for_newer_devices_carries_the_hash() {
    let nvrtc = nvrtc();
    let shape = Shape::of(&Checkpoint::embedded().unwrap());
    let target = resolve("sm_80").unwrap().target;
    let bucket = Bucket { first: 0, last: 255 };
    let low = lower(&shape, &target, &Knobs::default(), bucket, Mode::Bf16).unwrap();
    let cache = ImageCache::disabled();
    let mut request = BuildRequest {
        target: &target,
        nvrtc: &nvrtc,
        cache: &cache,
        options: RenderOptions::default(),
        spills: SpillPolicy::Report,
        corrupt: None,
    };
    let built = build(low.program.clone(), &request).unwrap();
    let hash = built.program.hash();
    let symbol = built.source.hash_symbol;
    assert_eq!(ptx_bytes(&built.ptx, symbol).as_deref(), Some(&hash[..]));
    assert_eq!(symbol_bytes(&built.cubin, symbol).unwrap(), hash);
    let driver = built.compiler.0 as i32 * 1000 + built.compiler.1 as i32 * 10;
    for (capability, is_ptx) in [((8, 0), false), ((8, 9), false), ((9, 0), true), ((12, 0), true)]
    {
        let image = built.image_for(capability).unwrap();
        assert_eq!(matches!(image, Image::Ptx(_)), is_ptx);
        let known = ImageFacts {
            image: &image,
            arch: built.arch,
            compiler: built.compiler,
            hash_symbol: symbol,
            program: hash,
            shared_bytes: built.source.shared_bytes,
        };
        admit(&known, &facts(capability), driver).unwrap();
        assert!(admit(&known, &facts(capability), 11_080).is_err());
    }

    let corrupt = ("1.5f".to_owned(), "1.25f".to_owned());
    request.corrupt = Some(&corrupt);
    let bad = build(low.program.clone(), &request).unwrap();
    assert_ne!(bad.key, built.key, "its verdict is its own");
    assert_eq!(symbol_bytes(&bad.cubin, symbol).unwrap(), hash);
    let corrupt = ("no such text".to_owned(), "x".to_owned());
    request.corrupt = Some(&corrupt);
    let error = build(low.program, &request).err().unwrap().to_string();
    assert!(error.contains("no such text"), "{error}");
}
