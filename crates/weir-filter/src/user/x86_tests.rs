use super::*;

/// An eBPF instruction; `dst` and `src` are eBPF's register numbers.
fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> EbpfInsn {
    u64::from(code)
        | u64::from(src << 4 | dst) << 8
        | u64::from(off as u16) << 16
        | u64::from(imm as u32) << 32
}

const EXIT: EbpfInsn = 0x95;

#[test]
fn code_is_what_the_manual_says() {
    let code = [
        insn(0x69, 7, 9, 12, 0),    // movzx r9d, word [rdi + 12]
        insn(0xdc, 7, 0, 0, 16),    // bswap r9d; shr r9d, 16
        insn(0x56, 7, 0, 1, 0x800), // cmp r9d, 0x800; jne +1
        insn(0x63, 10, 7, -64, 0),  // mov [rsp - 64], r9d
        EXIT,
    ];
    #[rustfmt::skip]
    let expected = [
        0x44, 0x0f, 0xb7, 0x4f, 12,
        0x41, 0x0f, 0xc9, 0x41, 0xc1, 0xe9, 16,
        0x41, 0x81, 0xf9, 0, 8, 0, 0, 0x0f, 0x85, 5, 0, 0, 0,
        0x44, 0x89, 0x4c, 0x24, 0xc0,
        0xc3,
    ];
    assert_eq!(compile(&code).expect("known instructions"), expected);
}

#[test]
fn some_instructions_are_one_unless_somebody_jumps_in_between() {
    let code = [
        insn(0xbf, 1, 8, 0, 0), // lea rcx, [r10 + 30]
        insn(0x07, 1, 0, 0, 14),
        insn(0x07, 1, 0, 0, 16),
        insn(0x0f, 1, 9, 0, 0), // movzx r9d, word [rcx + rdi - 2]
        insn(0x69, 7, 1, -2, 0),
        insn(0x0f, 1, 9, 0, 0), // mov r9d, [rcx + rdi + 300]
        insn(0x61, 7, 1, 300, 0),
        insn(0xbf, 0, 6, 0, 0), // mov rax, r8
        EXIT,
    ];
    #[rustfmt::skip]
    let expected = [
        0x41, 0x89, 0xd0, // mov r8d, edx
        0x49, 0x8d, 0x4a, 30,
        0x44, 0x0f, 0xb7, 0x4c, 0x39, 0xfe,
        0x44, 0x8b, 0x8c, 0x39, 0x2c, 1, 0, 0,
        0x4c, 0x89, 0xc0,
        0xc3,
    ];
    assert_eq!(compile(&code).expect("known instructions"), expected);
    let jumped_into = [
        insn(0x56, 7, 0, 1, 0), // cmp r9d, 0; jne to the addition
        code[0],                // mov rcx, r10
        code[1],                // add rcx, 14
        EXIT,
    ];
    #[rustfmt::skip]
    let expected = [
        0x41, 0x83, 0xf9, 0, 0x0f, 0x85, 3, 0, 0, 0,
        0x4c, 0x89, 0xd1,
        0x48, 0x83, 0xc1, 14,
        0xc3,
    ];
    assert_eq!(compile(&jumped_into).expect("known instructions"), expected);
}

#[test]
fn the_last_question_chooses_an_answer_without_a_jump() {
    let answers = [insn(0xb4, 0, 0, 0, 7), EXIT, insn(0xb4, 0, 0, 0, 0), EXIT];
    #[rustfmt::skip]
    let (loaded, behind) = (
        [0xb8, 7, 0, 0, 0, 0x31, 0xc9], // mov eax, 7; xor ecx, ecx
        [0xb8, 7, 0, 0, 0, 0xc3, 0x31, 0xc0, 0xc3],
    );
    let differs = [&[insn(0x56, 7, 0, 2, 80)][..], &answers].concat();
    // cmp r9d, 80; cmovne eax, ecx; ret
    let chosen = [&[0x41, 0x83, 0xf9, 80][..], &[0x0f, 0x45, 0xc1, 0xc3]].concat();
    let expected = [&loaded[..], &chosen, &behind].concat();
    assert_eq!(compile(&differs).expect("known instructions"), expected);
    let has_bit = [&[insn(0x46, 7, 0, 1, 2), insn(0x05, 0, 0, 2, 0)][..], &answers].concat();
    // test r9d, 2; cmove eax, ecx; ret
    let chosen = [&[0x41, 0xf7, 0xc1, 2, 0, 0, 0][..], &[0x0f, 0x44, 0xc1, 0xc3]].concat();
    let expected = [&loaded[..], &chosen, &behind].concat();
    assert_eq!(compile(&has_bit).expect("known instructions"), expected);
}

#[test]
fn a_condition_around_a_jump_is_its_opposite() {
    let code = [insn(0x46, 7, 0, 1, 2), insn(0x05, 0, 0, 1, 0), insn(0xbf, 0, 7, 0, 0), EXIT];
    #[rustfmt::skip]
    let expected = [
        0x41, 0xf7, 0xc1, 2, 0, 0, 0, 0x0f, 0x84, 3, 0, 0, 0, // test r9d, 2; je to the end
        0x4c, 0x89, 0xc8,
        0xc3,
    ];
    assert_eq!(compile(&code).expect("known instructions"), expected);
}

#[test]
fn what_the_converter_does_not_make_is_refused() {
    let cases = [
        insn(0x85, 0, 0, 0, 1),     // a call
        insn(0x63, 10, 7, -132, 0), // below the red zone
        insn(0x63, 10, 7, 0, 0),    // above the stack
        insn(0x61, 7, 10, -3, 0),   // half above the stack
        insn(0x73, 9, 7, 0, 0),     // a store into the frame
        insn(0xbf, 3, 7, 0, 0),     // r3, which is not used in user space
        insn(0xbf, 11, 7, 0, 0),    // there is no register 11
        insn(0x05, 0, 0, 100, 0),   // a jump out of the code
        insn(0x34, 7, 0, 0, 0),     // division by zero
        insn(0x3c, 0, 8, 0, 0),     // division of r0, the scratch register of divisions
        insn(0xdc, 7, 0, 0, 64),    // byte swap of eight bytes
        insn(0x18, 7, 0, 0, 0),     // a load of 64 bits, which has two halves
    ];
    for case in cases {
        assert_eq!(compile(&[case, EXIT]), None, "{case:#x}");
    }
}
