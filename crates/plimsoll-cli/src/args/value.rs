//! How words and quantities of the engine become option values.

use std::ffi::OsStr;
use std::marker::PhantomData;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};
use plimsoll_engine::{Choice, OptionValue};

/// Parses the words of one option; offers them to help texts and completions.
#[derive(Debug)]
pub struct Words<T>(PhantomData<fn() -> T>);

impl<T> Clone for Words<T> {
    fn clone(&self) -> Self {
        Words(PhantomData)
    }
}

/// The parser of `T`'s words.
pub fn words<T: OptionValue + Send + Sync>() -> Words<T> {
    Words(PhantomData)
}

impl<T: OptionValue + Send + Sync> TypedValueParser for Words<T> {
    type Value = Choice<T>;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, Error> {
        let text = value.to_string_lossy();
        text.parse().map_err(|_| {
            let mut error = Error::new(ErrorKind::InvalidValue).with_cmd(command);
            if let Some(arg) = arg {
                error.insert(ContextKind::InvalidArg, ContextValue::String(arg.to_string()));
            }
            error.insert(ContextKind::InvalidValue, ContextValue::String(text.into_owned()));
            let names = T::words().iter().map(|w| w.name).chain(T::FORMS.iter().map(|f| f.0));
            let names = names.map(str::to_owned).collect();
            error.insert(ContextKind::ValidValue, ContextValue::Strings(names));
            error
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let words = T::words()
            .iter()
            .map(|w| PossibleValue::new(w.name).help(w.help).aliases(w.aliases.iter().copied()));
        let forms = T::FORMS.iter().map(|(form, help)| PossibleValue::new(*form).help(*help));
        Some(Box::new(words.chain(forms)))
    }
}
