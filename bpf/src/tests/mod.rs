mod account;
mod grid;
