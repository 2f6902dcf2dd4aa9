//! The search from the outside: its space, its commands, its gates. Nothing here needs a GPU.

mod cheats;
mod commands;
mod knobs;
