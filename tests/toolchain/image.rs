//! Reading cubins, and a cache that trusts nothing.

use std::path::Path;

use amk::image::{
    Budget, CacheError, CacheWarning, Image, ImageCache, ImageKey, KeyInputs, Provenance,
    check_budget, inspect, symbol_bytes,
};
use amk::target::{DEFAULT_ARCHS, resolve};
use amk::toolchain::{CompileRequest, SpillPolicy};

use crate::support::{SMALL, SPILLING, arch, compile, nvrtc, request};

#[test]
fn the_cubin_says_what_the_log_says_on_every_architecture() {
    for arch in DEFAULT_ARCHS {
        let out = compile(SMALL, &arch.to_string()).unwrap();
        let info = inspect(&out.cubin).unwrap();
        assert!(info.is_for(arch), "{arch}: {info:?}");
        assert_eq!(info.kernels.len(), 2, "{arch}");
        for from_log in out.report().functions {
            let kernel = info.kernel(&from_log.name).unwrap();
            assert_eq!(kernel.registers, from_log.registers, "{arch} {}", kernel.name);
            assert_eq!(kernel.stack_bytes, from_log.stack_bytes, "{arch} {}", kernel.name);
            assert_eq!(
                kernel.shared_bytes,
                u64::from(from_log.shared_bytes),
                "{arch} {}",
                kernel.name
            );
            assert_eq!(kernel.instructions * 16, kernel.code_bytes, "{arch}");
            assert!(kernel.instructions >= 8 && kernel.constant_bytes > 0, "{arch}");
        }
        assert_eq!(info.kernel("reverse").unwrap().shared_bytes, 1024, "{arch}");
        assert!(info.user_constant_bytes >= 32, "{arch}");
        let target = resolve(&arch.to_string()).unwrap().target;
        let budget = Budget { threads: 256, dynamic_shared: 0 };
        assert!(check_budget(info.kernel("reverse").unwrap(), &target, budget).is_ok());
    }
}

#[test]
fn a_spilling_kernel_shows_its_frame() {
    let lenient = CompileRequest { spills: SpillPolicy::Report, ..request(SPILLING, "sm_80") };
    let out = nvrtc().compile(&lenient).unwrap();
    let info = inspect(&out.cubin).unwrap();
    let kernel = info.kernel("spill").unwrap();
    assert_eq!(kernel.stack_bytes, out.report().functions[0].stack_bytes);
    assert!(kernel.stack_bytes > 0 && kernel.registers <= 32);
}

#[test]
fn named_symbols_are_read_whether_used_or_not() {
    for arch in DEFAULT_ARCHS {
        let cubin = compile(SMALL, &arch.to_string()).unwrap().cubin;
        let mut hash = [0u8; 32];
        hash[..5].copy_from_slice(&[1, 2, 3, 4, 5]);
        assert_eq!(symbol_bytes(&cubin, "amk_program_hash").unwrap(), hash, "{arch}");
        let words = symbol_bytes(&cubin, "unused_words").unwrap();
        assert_eq!(words, [4, 3, 2, 1, 7, 0, 0, 0, 9, 0, 0, 0], "{arch}");
        let table = symbol_bytes(&cubin, "table").unwrap();
        assert_eq!(table, [7, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 10, 0, 0, 0], "{arch}");
        assert_eq!(symbol_bytes(&cubin, "zeroed").unwrap(), [0; 16], "{arch}");
        let absent = symbol_bytes(&cubin, "absent").unwrap_err().to_string();
        assert!(absent.contains("absent"), "{absent}");
    }
}

#[test]
fn damaged_images_are_errors_and_never_panics() {
    let cubin = compile(SMALL, "sm_90a").unwrap().cubin;
    for length in (0..cubin.len()).step_by(97) {
        let _ = inspect(&cubin[..length]);
        let _ = symbol_bytes(&cubin[..length], "table");
    }
    assert!(inspect(&cubin[..cubin.len() / 2]).is_err());
    let mut state = 1u64;
    for _ in 0..4000 {
        let mut bytes = cubin.clone();
        for _ in 0..4 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] ^= (state >> 24) as u8;
        }
        let _ = inspect(&bytes);
        let _ = symbol_bytes(&bytes, "table");
        let _ = symbol_bytes(&bytes, "zeroed");
    }
}

fn get(cache: &ImageCache, source: &str, arch_name: &str) -> Image {
    cache.get_or_compile(nvrtc(), &request(source, arch_name)).unwrap()
}

fn files(root: &Path) -> Vec<std::path::PathBuf> {
    let read = std::fs::read_dir(root.join("images")).unwrap();
    let mut out: Vec<_> = read.map(|e| e.unwrap().path()).collect();
    out.sort();
    out
}

#[test]
fn the_second_request_is_served_from_the_cache_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let cache = ImageCache::at(dir.path());
    let first = get(&cache, SMALL, "sm_90a");
    assert_eq!((&first.provenance, &first.warning), (&Provenance::Built, &None));
    let second = get(&cache, SMALL, "sm_90a");
    assert_eq!(second.provenance, Provenance::Cached);
    assert_eq!(
        (&first.compiled, &first.info, first.key),
        (&second.compiled, &second.info, second.key)
    );
    get(&cache, SMALL, "sm_80");
    get(&cache, &format!("{SMALL}\n"), "sm_90a");
    assert_eq!(files(dir.path()).len(), 3);
    let uncached = get(&ImageCache::disabled(), SMALL, "sm_90a");
    assert_eq!(uncached.provenance, Provenance::Built);
    assert_eq!(uncached.compiled, first.compiled);
}

#[test]
fn a_flipped_bit_anywhere_is_noticed_and_the_image_is_built_anew() {
    let dir = tempfile::tempdir().unwrap();
    let cache = ImageCache::at(dir.path());
    let first = get(&cache, SMALL, "sm_86");
    let path = cache.path_of(&first.key).unwrap();
    let good = std::fs::read(&path).unwrap();
    for at in (0..good.len()).step_by(41).chain([good.len() - 1]) {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        std::fs::write(&path, &bytes).unwrap();
        let loaded = cache.load(&first.key, first.arch);
        assert!(matches!(loaded, Err(CacheWarning::Damaged { .. })), "byte {at}: {loaded:?}");
    }
    for bytes in [&good[..good.len() - 1], &good[..20], &good[..0]] {
        std::fs::write(&path, bytes).unwrap();
        assert!(matches!(cache.load(&first.key, first.arch), Err(CacheWarning::Damaged { .. })));
    }
    let rebuilt = get(&cache, SMALL, "sm_86");
    let Provenance::Rebuilt(warning) = &rebuilt.provenance else {
        panic!("{:?}", rebuilt.provenance);
    };
    assert!(warning.to_string().contains("built anew"), "{warning}");
    assert_eq!(rebuilt.compiled, first.compiled);
    assert_eq!(std::fs::read(&path).unwrap(), good);
    assert_eq!(get(&cache, SMALL, "sm_86").provenance, Provenance::Cached);
    assert_eq!(files(dir.path()).len(), 1, "no temporary file is left");
}

#[test]
fn an_image_for_another_architecture_is_never_served() {
    let dir = tempfile::tempdir().unwrap();
    let cache = ImageCache::at(dir.path());
    let consumer = get(&cache, SMALL, "sm_120");
    let hopper = get(&cache, SMALL, "sm_90a");
    // An intact sm_120 file under the name of the sm_90a image.
    let path = cache.path_of(&hopper.key).unwrap();
    std::fs::copy(cache.path_of(&consumer.key).unwrap(), &path).unwrap();
    let refused = cache.load(&hopper.key, hopper.arch).unwrap_err();
    assert!(matches!(refused, CacheWarning::Foreign { .. }), "{refused}");
    assert!(refused.to_string().contains("sm_120"), "{refused}");
    assert_eq!(get(&cache, SMALL, "sm_90a").compiled, hopper.compiled);
    // Asking for the other architecture under a good key does not get it either.
    assert!(cache.load(&hopper.key, arch("sm_120")).is_err());
    assert!(cache.load(&hopper.key, arch("sm_90")).is_err());
    // Another source's image of the same architecture under this key.
    let other = get(&cache, &format!("{SMALL}// other\n"), "sm_90a");
    std::fs::copy(cache.path_of(&other.key).unwrap(), &path).unwrap();
    let refused = cache.load(&hopper.key, hopper.arch).unwrap_err();
    assert!(matches!(refused, CacheWarning::Foreign { .. }), "{refused}");
}

#[test]
fn an_image_of_another_architecture_is_not_even_stored() {
    let dir = tempfile::tempdir().unwrap();
    let cache = ImageCache::at(dir.path());
    let made = compile(SMALL, "sm_120").unwrap();
    let key = ImageKey::new(&KeyInputs {
        source: SMALL,
        arch: arch("sm_90a"),
        compiler: "any",
        options: &[],
    })
    .unwrap();
    let error = cache.store(&key, arch("sm_90a"), "any", &made).unwrap_err();
    assert!(matches!(error, CacheError::WrongArch { .. }), "{error}");
    let plain = compile(SMALL, "sm_90").unwrap();
    let error = cache.store(&key, arch("sm_90a"), "any", &plain).unwrap_err();
    assert!(error.to_string().contains("sm_90 "), "{error}");
    assert!(!dir.path().join("images").exists());
}

#[test]
fn a_cached_image_must_meet_the_spill_policy_too() {
    let dir = tempfile::tempdir().unwrap();
    let cache = ImageCache::at(dir.path());
    let lenient = CompileRequest { spills: SpillPolicy::Report, ..request(SPILLING, "sm_90a") };
    let image = cache.get_or_compile(nvrtc(), &lenient).unwrap();
    assert!(image.report.spill_bytes() > 0);
    let strict = cache.get_or_compile(nvrtc(), &request(SPILLING, "sm_90a"));
    assert!(strict.unwrap_err().to_string().contains("spills"));
}

#[test]
fn a_cache_that_cannot_be_written_costs_a_warning_not_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let image = get(&ImageCache::at(&file), SMALL, "sm_80");
    let warning = match (&image.provenance, &image.warning) {
        (Provenance::Built | Provenance::Rebuilt(_), Some(warning)) => warning.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(warning.contains("AMK_CACHE"), "{warning}");
}
