//! `amk toolchain`: which CUDA compiler there is, and how to get one.

use std::path::PathBuf;

use amk::toolchain::{
    FetchError, FetchEvent, FetchOptions, FindOptions, cache_root, fetch, find_nvrtc,
    installed_versions,
};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::{Failure, Outcome, Verdict};
use crate::output::{Output, Tone};

/// Show or fetch the CUDA compiler NVRTC.
#[derive(Args)]
#[command(after_help = "\
NVRTC is looked for in this order: --nvrtc or AMK_NVRTC, a CUDA toolkit, the system's libraries, the
wheels of python3, what `amk toolchain fetch` has fetched. No GPU is needed.

Examples:
  amk toolchain status
  amk toolchain fetch")]
pub struct ToolchainArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Status(StatusArgs),
    Fetch(FetchArgs),
}

/// Show the compiler that would be used; exit code 3 if there is none.
#[derive(Args)]
#[command(after_help = "\
Examples:
  amk toolchain status
  amk toolchain status --nvrtc /usr/local/cuda/lib64")]
struct StatusArgs {
    /// The NVRTC library to use, or the folder that holds it.
    #[arg(long, value_name = "PATH")]
    nvrtc: Option<PathBuf>,
}

/// Fetch the NVRTC wheel by name through pip into amk's cache folder.
#[derive(Args)]
#[command(after_help = "\
About 90 MB to download and 220 MB on disk. Nothing is fetched when that release is there and works.

Examples:
  amk toolchain fetch
  amk toolchain fetch --version 12.9.86")]
struct FetchArgs {
    /// The release to fetch; the default is the one amk is tested with.
    #[arg(long, value_name = "X.Y.Z")]
    version: Option<String>,
    /// Fetch again although it is there.
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct StatusDocument {
    ok: bool,
    nvrtc: Option<NvrtcDocument>,
    fetched: Vec<FetchedDocument>,
    cache: Option<PathBuf>,
    detail: Option<String>,
}

#[derive(Serialize)]
struct NvrtcDocument {
    identity: String,
    path: PathBuf,
    origin: amk::toolchain::Origin,
    architectures: Vec<u32>,
}

#[derive(Serialize)]
struct FetchedDocument {
    version: String,
    path: PathBuf,
}

#[derive(Serialize)]
struct FetchDocument {
    ok: bool,
    version: String,
    library: PathBuf,
    already_there: bool,
}

pub fn run(args: ToolchainArgs, out: &Output) -> Outcome {
    match args.action {
        Action::Status(args) => status(args, out),
        Action::Fetch(args) => run_fetch(args, out),
    }
}

fn status(args: StatusArgs, out: &Output) -> Outcome {
    let found = find_nvrtc(&FindOptions::from_env(args.nvrtc));
    let cache = cache_root().ok();
    let fetched = cache.as_deref().map(installed_versions).unwrap_or_default();
    let mut document = StatusDocument {
        ok: found.is_ok(),
        nvrtc: None,
        fetched: fetched
            .into_iter()
            .map(|(version, path)| FetchedDocument { version, path })
            .collect(),
        cache,
        detail: None,
    };
    match found {
        Ok(found) => {
            let nvrtc = found.nvrtc;
            out.line(format!("{}, {}", out.paint(Tone::Good, nvrtc.identity()), nvrtc.origin()));
            out.line(format!("  {}", nvrtc.path().display()));
            let known: Vec<String> = nvrtc.supported().iter().map(|a| format!("sm_{a}")).collect();
            out.detail(format!("  compiles for {}", known.join(", ")));
            for skipped in &found.skipped {
                out.detail(format!("  passed over {}: {}", skipped.path.display(), skipped.reason));
            }
            document.nvrtc = Some(NvrtcDocument {
                identity: nvrtc.identity(),
                path: nvrtc.path().to_owned(),
                origin: nvrtc.origin(),
                architectures: nvrtc.supported().to_vec(),
            });
        }
        Err(error) => {
            out.line(out.paint(Tone::Warn, &error));
            document.detail = Some(error.to_string());
        }
    }
    for fetched in &document.fetched {
        out.detail(format!("fetched {} in {}", fetched.version, fetched.path.display()));
    }
    out.document(&document);
    Ok(if document.ok { Verdict::Yes } else { Verdict::Environment })
}

fn run_fetch(args: FetchArgs, out: &Output) -> Outcome {
    let mut options = FetchOptions::from_env().map_err(Failure::environment)?;
    options.force = args.force;
    if let Some(version) = args.version {
        options.version = version;
    }
    let bar = out.spinner("looking for pip");
    let result = fetch(&options, &mut |event| match event {
        FetchEvent::Started { requirement, folder } => {
            bar.set_message(format!("pip installs {requirement} into {}", folder.display()));
        }
        FetchEvent::Checking => bar.set_message("trying the compiler"),
        FetchEvent::Line(_) | FetchEvent::Tick { .. } => bar.tick(),
    });
    bar.finish_and_clear();
    let fetched = result.map_err(|error| match error {
        FetchError::BadVersion(_) => Failure::input(error),
        _ => Failure::environment(error),
    })?;
    let what = if fetched.already_there { "is there" } else { "fetched" };
    out.line(format!("NVRTC {} {what}: {}", fetched.release, fetched.library.display()));
    out.document(&FetchDocument {
        ok: true,
        version: fetched.release,
        library: fetched.library,
        already_there: fetched.already_there,
    });
    Ok(Verdict::Yes)
}
