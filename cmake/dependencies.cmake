# What dgc::core links against. Used by the build and, installed, by dgcConfig.cmake.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(PkgConfig REQUIRED)
# Debian's Highway and xxHash have pkg-config files and no CMake packages.
pkg_check_modules(DGC_HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(DGC_XXHASH REQUIRED IMPORTED_TARGET libxxhash)
if(DGC_WITH_GLOO)
  find_package(Gloo REQUIRED)
endif()
if(DGC_WITH_TORCH AND NOT TARGET dgc_libtorch)
  # Not find_package(Torch): Debian's wants parts of Caffe2 that no package has, and links more than
  # is used.
  find_library(DGC_TORCH_CPU_LIBRARY torch_cpu REQUIRED)
  find_library(DGC_C10_LIBRARY c10 REQUIRED)
  find_path(DGC_TORCH_INCLUDE_DIR torch/csrc/api/include/torch/torch.h REQUIRED)
  add_library(dgc_libtorch INTERFACE IMPORTED)
  target_include_directories(dgc_libtorch INTERFACE
    ${DGC_TORCH_INCLUDE_DIR} ${DGC_TORCH_INCLUDE_DIR}/torch/csrc/api/include)
  target_link_libraries(dgc_libtorch INTERFACE ${DGC_TORCH_CPU_LIBRARY} ${DGC_C10_LIBRARY})
endif()
if(DGC_WITH_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # the C functions only
  find_package(MPI REQUIRED COMPONENTS CXX)
endif()
