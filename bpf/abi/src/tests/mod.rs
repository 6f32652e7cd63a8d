mod layout;
mod record;
