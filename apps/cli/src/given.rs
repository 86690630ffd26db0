//! Options that the command line has, also with the values that they would have without it: for those that have no effect beside others.

use clap::error::Error;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

/// A flattened field of a command's arguments, before all others: each field takes its values out of what the parser has found.
#[derive(Debug, Default)]
pub(crate) struct Given(ArgMatches);

impl Given {
    /// The first of these flags, with a blank between two, that is given. Each is one of the command.
    pub(crate) fn first_of<'a>(&self, flags: &'a str) -> Option<&'a str> {
        flags.split(' ').find(|flag| {
            let id = flag.trim_start_matches('-').replace('-', "_");
            self.0.value_source(&id) == Some(ValueSource::CommandLine)
        })
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(found: &ArgMatches) -> Result<Self, Error> {
        Ok(Self(found.clone()))
    }

    fn update_from_arg_matches(&mut self, found: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(found)?;
        Ok(())
    }
}

impl Args for Given {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}
