mod account;
mod draw;
mod grid;
mod headers;
mod maple;
