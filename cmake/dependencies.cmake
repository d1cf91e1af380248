# What dgc::core links against. Used by the build and, installed, by dgcConfig.cmake.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(PkgConfig REQUIRED)
# Debian's Highway has a pkg-config file and no CMake package.
pkg_check_modules(DGC_HWY REQUIRED IMPORTED_TARGET libhwy)
