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
if(DGC_WITH_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # the C functions only
  find_package(MPI REQUIRED COMPONENTS CXX)
endif()
