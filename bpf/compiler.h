/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Macros that keep clang from transformations which the kernel's verifier would reject. */
#ifndef WEIR_COMPILER_H
#define WEIR_COMPILER_H

#define weir_barrier() asm volatile("" ::: "memory")

/*
 * Hides from clang facts about a value that the verifier does not know. Lengths and offsets are 64 bits wide for the
 * same reason: clang compares a shifted copy of a 32-bit value, and the verifier then knows bounds only of the copy.
 */
#define weir_opaque(value) asm volatile("" : "+r"(value))

#endif
