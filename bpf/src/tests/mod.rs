mod account;
mod draw;
mod grid;
mod maple;
