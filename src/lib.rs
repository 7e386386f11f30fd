//! artisand
#![forbid(unsafe_code)]
pub mod payload;
pub mod php;
pub mod time;
