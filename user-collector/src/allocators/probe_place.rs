//! Where a function is probed.
//!
//! What a probe costs depends on the instruction that it replaces. The kernel emulates pushes,
//! jumps, calls and `nop`, which takes less than a microsecond. Others it runs out of line, one
//! step at a time, which takes ten times as long and more in a virtual machine. So the probe is on
//! the first instruction of the function that is emulated, as long as the instructions before it
//! leave the arguments in their registers and the stack pointer at the return address.

use bpf_abi::layout::AllocatorFunction;
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use object::elf::{EM_X86_64, Machine};

/// Bytes of a function that are looked at.
pub(super) const MAX_PLACE_BYTES: usize = 64;

/// A place for a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbePlace {
    /// Bytes from the beginning of the function on.
    pub(super) offset: u64,
    /// The kernel emulates the instruction there.
    pub(super) emulated: bool,
}

/// Returns the place for a function with this code.
pub(super) fn probe_place(
    machine: Machine,
    code: &[u8],
    function: AllocatorFunction,
) -> ProbePlace {
    let beginning = ProbePlace {
        offset: 0,
        emulated: false,
    };
    if machine != EM_X86_64 {
        return beginning;
    }
    let arguments = arguments(function);
    for instruction in Decoder::new(64, code, DecoderOptions::NONE) {
        if is_emulated(&instruction) {
            return ProbePlace {
                offset: instruction.ip(),
                emulated: true,
            };
        }
        if !leaves(&instruction, arguments) {
            break;
        }
    }
    beginning
}

/// Returns how many arguments of a function are read.
fn arguments(function: AllocatorFunction) -> &'static [[Register; 4]] {
    const REGISTERS: [[Register; 4]; 3] = [
        [Register::RDI, Register::EDI, Register::DI, Register::DIL],
        [Register::RSI, Register::ESI, Register::SI, Register::SIL],
        [Register::RDX, Register::EDX, Register::DX, Register::DL],
    ];
    match function {
        AllocatorFunction::Malloc | AllocatorFunction::New | AllocatorFunction::Free => {
            &REGISTERS[..1]
        }
        AllocatorFunction::Calloc | AllocatorFunction::Realloc | AllocatorFunction::Memalign => {
            &REGISTERS[..2]
        }
        AllocatorFunction::Reallocarray | AllocatorFunction::PosixMemalign => &REGISTERS,
        // They are no functions.
        AllocatorFunction::Sampled | AllocatorFunction::SampledFree => &[],
    }
}

/// Whether the kernel emulates an instruction (`branch_setup_xol_ops` and `push_setup_xol_ops` in
/// `arch/x86/kernel/uprobes.c`, since Linux 4.18). It emulates the `nop` of one byte; older kernels
/// do not emulate longer ones.
fn is_emulated(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Push => matches!(instruction.code(), Code::Push_r64),
        Mnemonic::Nop => instruction.len() == 1,
        Mnemonic::Jmp
        | Mnemonic::Call
        | Mnemonic::Ja
        | Mnemonic::Jae
        | Mnemonic::Jb
        | Mnemonic::Jbe
        | Mnemonic::Je
        | Mnemonic::Jne
        | Mnemonic::Jg
        | Mnemonic::Jge
        | Mnemonic::Jl
        | Mnemonic::Jle
        | Mnemonic::Jo
        | Mnemonic::Jno
        | Mnemonic::Jp
        | Mnemonic::Jnp
        | Mnemonic::Js
        | Mnemonic::Jns => instruction.op0_kind() == OpKind::NearBranch64,
        _ => false,
    }
}

/// Whether the next instruction runs after this one with the arguments still in their registers and
/// the stack pointer unchanged.
fn leaves(instruction: &Instruction, arguments: &[[Register; 4]]) -> bool {
    // Those that write nothing but their first operand and flags.
    let known = matches!(
        instruction.mnemonic(),
        Mnemonic::Endbr64
            | Mnemonic::Nop
            | Mnemonic::Test
            | Mnemonic::Cmp
            | Mnemonic::Mov
            | Mnemonic::Movzx
            | Mnemonic::Movsxd
            | Mnemonic::Lea
            | Mnemonic::Xor
            | Mnemonic::And
            | Mnemonic::Or
            | Mnemonic::Add
            | Mnemonic::Sub
            | Mnemonic::Shl
            | Mnemonic::Shr
            | Mnemonic::Sar
            | Mnemonic::Inc
            | Mnemonic::Dec
    );
    if !known {
        return false;
    }
    if matches!(instruction.mnemonic(), Mnemonic::Test | Mnemonic::Cmp)
        || instruction.op0_kind() != OpKind::Register
    {
        return true;
    }
    let written = instruction.op0_register();
    let stack = [Register::RSP, Register::ESP, Register::SP, Register::SPL];
    !stack.contains(&written) && !arguments.iter().any(|names| names.contains(&written))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(code: &[u8], function: AllocatorFunction) -> (u64, bool) {
        let place = probe_place(EM_X86_64, code, function);
        (place.offset, place.emulated)
    }

    #[test]
    fn the_first_emulated_instruction() {
        use AllocatorFunction::{Free, Malloc, PosixMemalign, Reallocarray};
        // push %r12; push %rbp
        assert_eq!(place(b"\x41\x54\x55", Malloc), (0, true));
        // endbr64; push %rbp
        assert_eq!(place(b"\xf3\x0f\x1e\xfa\x55", Malloc), (4, true));
        // test %rdi,%rdi; je
        assert_eq!(
            place(b"\x48\x85\xff\x0f\x84\xbf\0\0\0\x55", Free),
            (3, true)
        );
        // cmpb $0,0x140201(%rip); push %r12
        let compare = b"\x80\x3d\x01\x02\x14\0\0\x41\x54";
        assert_eq!(place(compare, PosixMemalign), (7, true));
        // jmp
        assert_eq!(place(b"\xe9\x40\xb8\xf8\xff", Malloc), (0, true));
        // mov %rsi,%rax; mul %rdx: changes what is an argument
        assert_eq!(
            place(b"\x48\x89\xf0\x48\xf7\xe2\x70\x05", Reallocarray),
            (0, false)
        );
    }

    #[test]
    fn no_probe_after_arguments_or_the_stack_change() {
        use AllocatorFunction::{Calloc, Malloc};
        // mov %rdi,%rax; mov %rsi,%rdi; push %rbp
        let moved = b"\x48\x89\xf8\x48\x89\xf7\x55";
        assert_eq!(place(moved, Malloc), (0, false));
        // xor %esi,%esi; push %rbp: the second argument
        assert_eq!(place(b"\x31\xf6\x55", Malloc), (2, true));
        assert_eq!(place(b"\x31\xf6\x55", Calloc), (0, false));
        // sub $0x18,%rsp; je
        assert_eq!(place(b"\x48\x83\xec\x18\x74\x05", Malloc), (0, false));
        // ret; push %rbp
        assert_eq!(place(b"\xc3\x55", Malloc), (0, false));
        // jmp *%rax; push (%rax)
        assert_eq!(place(b"\xff\xe0\x55", Malloc), (0, false));
        assert_eq!(place(b"\xff\x30\x55", Malloc), (0, false));
        assert_eq!(place(b"", Malloc), (0, false));
    }
}
