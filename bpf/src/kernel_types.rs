//! The types of the running kernel, by which its abilities are known.

use std::fmt;

use libbpf_rs::btf::Btf;

/// The types of the running kernel (BTF): megabytes, which take milliseconds to read, so they are
/// read once and kept while the programs are loaded. Empty where the kernel has none.
pub struct KernelTypes(Option<Btf<'static>>);

impl KernelTypes {
    /// Reads them.
    #[must_use]
    pub fn read() -> KernelTypes {
        KernelTypes(Btf::from_vmlinux().ok())
    }

    pub(crate) fn btf(&self) -> Option<&Btf<'static>> {
        self.0.as_ref()
    }
}

impl fmt::Debug for KernelTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KernelTypes")
            .field(&self.0.as_ref().map(Btf::len))
            .finish()
    }
}
