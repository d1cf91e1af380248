// What makes libtorch fast on this machine, and has to be said to the libraries below it.
#pragma once

namespace dgc::process {

/// Debian 12's OpenBLAS takes processors that are newer than itself for the oldest that it knows,
/// and multiplies with SSE3: several times slower. Where it would, sets OPENBLAS_CORETYPE to what
/// the processor can do, for the programs that this one starts (OpenBLAS reads it while it is
/// loaded). The variable is left alone where the user has set it.
void choose_fast_blas();

/// What OpenBLAS takes the processor for, after that; empty where there is no OpenBLAS.
const char* fast_blas_core();

/// Memory that was freed is kept for the next step: training asks for the same again and again, and
/// giving large blocks back to the system and clearing them anew took a tenth of the time.
void keep_freed_memory() noexcept;

}  // namespace dgc::process
