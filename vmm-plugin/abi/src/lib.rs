//! The device contract between guest and Turnstile: registers, doorbells, commands, errors.
#![forbid(unsafe_code)]
#![no_std]
