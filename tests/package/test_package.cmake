# Installs the build to an empty folder and uses it from projects outside:
#   - examples/quickstart, a project of its own, with dgc::core alone
#   - the same program with pkg-config
#   - tests/package: dgc::engines and dgc::torch, each with a small program that includes every public
#     header of the component (a program with all of libtorch takes 25 s to compile)
#   - examples/libtorch, a project of its own, configured; its source is built with the tests
set(work ${BUILD_DIR}/package_test)
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${ARGV}\n${out}")
  endif()
  set(output "${out}" PARENT_SCOPE)
endfunction()

set(options -DCMAKE_PREFIX_PATH=${work}/prefix)
# Through the compiler cache, as the build itself (cmake/compile.cmake): a header that was installed
# a moment ago, in a folder of another name, is still the same header.
find_program(ccache ccache)
if(ccache)
  list(APPEND options -DCMAKE_CXX_COMPILER_LAUNCHER=${ccache})
  set(ENV{CCACHE_BASEDIR} ${BUILD_DIR})
  set(ENV{CCACHE_NOHASHDIR} 1)
  set(ENV{CCACHE_SLOPPINESS} time_macros,include_file_mtime,include_file_ctime)
else()
  set(ccache "")
endif()

if(CORE_BUILD)  # this build has the parts that need libtorch alone
  foreach(component IN ITEMS core engines)
    run(${CMAKE_COMMAND} --install ${CORE_BUILD} --prefix ${work}/prefix --component ${component})
  endforeach()
endif()
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${work}/prefix)
run(${work}/prefix/bin/dgc --version)
if(WITH_TORCH)  # finds its other half, and that finds libtorch
  run(${work}/prefix/bin/dgc train synthetic --workers 1 --steps 1 --quiet --out ${work}/run)
endif()

# dgc::core, where Gloo and MPI cannot be found: it must not ask for them.
run(${CMAKE_COMMAND} -S ${EXAMPLES}/quickstart -B ${work}/quickstart ${options} -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_DISABLE_FIND_PACKAGE_Gloo=ON -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON)
run(${CMAKE_COMMAND} --build ${work}/quickstart)
run(${work}/quickstart/quickstart)
run(ldd ${work}/quickstart/quickstart)
if(output MATCHES "torch|gloo|mpi")
  message(FATAL_ERROR "dgc::core brings more than itself:\n${output}")
endif()

# The .pc files carry the configured prefix; point them at where this test installed.
file(GLOB_RECURSE pc ${work}/prefix/dgc.pc)
get_filename_component(pc_dir ${pc} DIRECTORY)
function(build_with_pkgconfig package source)
  run(bash -c "${ccache} c++ -std=c++20 -O1 -c ${source} -o ${work}/${package}.o $(PKG_CONFIG_PATH=${pc_dir} pkg-config --define-variable=prefix=${work}/prefix --cflags ${package})")
  run(bash -c "c++ ${work}/${package}.o -o ${work}/with_${package} $(PKG_CONFIG_PATH=${pc_dir} pkg-config --define-variable=prefix=${work}/prefix --libs --static ${package})")
  run(${work}/with_${package})
endfunction()
build_with_pkgconfig(dgc ${EXAMPLES}/quickstart/quickstart.cpp)
build_with_pkgconfig(dgc-engines ${SOURCE_DIR}/uses_engines.cpp)

# dgc::engines and dgc::torch.
run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${work}/build ${options} -DWITH_TORCH=${WITH_TORCH})
run(${CMAKE_COMMAND} --build ${work}/build --parallel 2)
run(${work}/build/uses_engines)
if(WITH_TORCH)
  run(${work}/build/uses_sgd)
  run(${CMAKE_COMMAND} -S ${EXAMPLES}/libtorch -B ${work}/libtorch ${options})
endif()
