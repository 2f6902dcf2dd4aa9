//! Arguments of filters and methods as Python takes them, by place or name.

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};

/// A call that cannot be carried out, with the reason.
pub(super) fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.into())
}

/// The arguments of one call.
pub(super) struct Args<'a> {
    places: &'a [Value],
    names: Kwargs,
}

impl<'a> Args<'a> {
    /// # Errors
    /// There are more than `most` by place.
    pub fn new(places: &'a [Value], names: Kwargs, most: usize) -> Result<Self, Error> {
        match places.len() > most {
            true => Err(Error::from(ErrorKind::TooManyArguments)),
            false => Ok(Self { places, names }),
        }
    }

    /// An argument that is there; without a name it has a place alone.
    pub fn given(&self, place: usize, name: &str) -> Result<Option<Value>, Error> {
        match self.places.get(place) {
            Some(value) => Ok(Some(value.clone())),
            None if self.names.has(name) => self.names.get(name).map(Some),
            None => Ok(None),
        }
    }

    /// An argument that is there and not none.
    pub fn get(&self, place: usize, name: &str) -> Result<Option<Value>, Error> {
        Ok(self.given(place, name)?.filter(|v| !v.is_none()))
    }

    pub fn flag(&self, place: usize, name: &str) -> Result<bool, Error> {
        Ok(self.get(place, name)?.is_some_and(|v| v.is_true()))
    }

    pub fn number(&self, place: usize, name: &str) -> Result<Option<i64>, Error> {
        self.get(place, name)?.map(|v| i64::try_from(v).map_err(Error::from)).transpose()
    }

    pub fn text(&self, place: usize, name: &str) -> Result<Option<String>, Error> {
        let value = self.get(place, name)?;
        let text = value.map(|v| v.as_str().map(str::to_string));
        text.map(|t| t.ok_or_else(|| invalid("the argument is not a string"))).transpose()
    }

    /// A text that has to be there.
    pub fn needed(&self, place: usize) -> Result<String, Error> {
        self.text(place, "")?.ok_or_else(|| Error::from(ErrorKind::MissingArgument))
    }

    /// # Errors
    /// There are names that nothing asked for.
    pub fn done(self) -> Result<(), Error> {
        self.names.assert_all_used()
    }
}
