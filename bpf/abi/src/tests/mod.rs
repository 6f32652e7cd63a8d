mod cpu_stats;
mod record;
