//! Why a command ended without an answer, and the exit code that says so.

use std::path::Path;

use serde::Serialize;

use crate::output::Output;

/// Whose turn it is to act. The number is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// The answer is no: a device that hangs, an image that says something wrong.
    Answer = 1,
    /// Wrong use, bad input or an unsupported model.
    Input = 2,
    /// The machine lacks something: a driver, a compiler, space on a disk.
    Environment = 3,
}

/// A sentence for the user: what was wrong, where, and what to do.
#[derive(Debug)]
pub struct Failure {
    pub class: Class,
    pub message: String,
    pub help: Option<String>,
    /// The message as it is shown to a person, where that is more than the sentence: with the place
    /// in the file and its surroundings.
    pub rendered: Option<String>,
}

#[derive(Serialize)]
struct ErrorDocument<'a> {
    ok: bool,
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    kind: Class,
    exit_code: u8,
    message: &'a str,
    help: Option<&'a str>,
}

impl Failure {
    /// Bad input, from any error that reads as a sentence.
    pub fn input(error: impl std::fmt::Display) -> Self {
        Self::new(Class::Input, error)
    }

    /// A shortcoming of the machine.
    pub fn environment(error: impl std::fmt::Display) -> Self {
        Self::new(Class::Environment, error)
    }

    /// A failure that is an answer.
    pub fn answer(error: impl std::fmt::Display) -> Self {
        Self::new(Class::Answer, error)
    }

    /// A failure of the given class.
    pub fn new(class: Class, error: impl std::fmt::Display) -> Self {
        Self { class, message: error.to_string(), help: None, rendered: None }
    }

    /// Adds what to do.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// A file of the user's that cannot be read: absent or a folder is their mistake, anything else
    /// the machine's.
    pub fn reading(path: &Path, error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Kind;
        let class = match error.kind() {
            Kind::NotFound | Kind::IsADirectory | Kind::InvalidInput | Kind::NotADirectory => {
                Class::Input
            }
            _ => Class::Environment,
        };
        Self::new(class, format!("cannot read {}: {error}", path.display()))
    }

    /// A file that cannot be written.
    pub fn writing(path: &Path, error: &std::io::Error) -> Self {
        Self::environment(format!("cannot write {}: {error}", path.display()))
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.class as u8
    }

    /// Prints it: a document on standard output in JSON mode, and a sentence on standard error.
    pub fn report(&self, out: &Output) {
        out.document(&ErrorDocument {
            ok: false,
            error: ErrorBody {
                kind: self.class,
                exit_code: self.code(),
                message: &self.message,
                help: self.help.as_deref(),
            },
        });
        match &self.rendered {
            Some(text) => out.raw_err(text),
            None => out.error(&self.message, self.help.as_deref()),
        }
    }
}
