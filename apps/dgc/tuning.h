// What makes libtorch fast on this machine, and has to be said to the libraries below it.
#pragma once

namespace dgc::app {

/// Debian 12's OpenBLAS takes processors that are newer than itself for the oldest that it knows,
/// and multiplies with SSE3: several times slower. Where that has happened, runs this program
/// again with OPENBLAS_CORETYPE set to what the processor can do, and does not return. The variable
/// is left alone where the user has set it. Call it before anything was said or begun.
void use_fast_blas();

/// What OpenBLAS takes the processor for, after that; empty where it is not loaded.
const char* fast_blas_core() noexcept;

/// Memory that was freed is kept for the next step: training asks for the same again and again, and
/// giving large blocks back to the system and clearing them anew took a tenth of the time.
void keep_freed_memory() noexcept;

}  // namespace dgc::app
