# What dgc::core links against. Used by the build and, installed, by dgcConfig.cmake.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(PkgConfig REQUIRED)
# Debian's Highway and xxHash have pkg-config files and no CMake packages.
pkg_check_modules(DGC_HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(DGC_XXHASH REQUIRED IMPORTED_TARGET libxxhash)
