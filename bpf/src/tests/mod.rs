mod account;
mod grid;
mod maple;
