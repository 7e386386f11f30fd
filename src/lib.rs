//! artisand
#![forbid(unsafe_code)]
pub mod php;
