# Installs the build to an empty folder, then builds and runs the examples against that alone: the
# quickstart with CMake's find_package and with pkg-config, that for libtorch with find_package.
set(work ${BUILD_DIR}/package_test)
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${ARGV}\n${out}")
  endif()
  set(output "${out}" PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${work}/prefix)
run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${work}/build -DCMAKE_PREFIX_PATH=${work}/prefix
    -DEXAMPLE=${EXAMPLE})
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/quickstart)

file(GLOB_RECURSE pc ${work}/prefix/dgc.pc)
get_filename_component(pc_dir ${pc} DIRECTORY)
# The .pc file carries the configured prefix; point it at where this test installed.
run(bash -c "c++ -std=c++20 ${EXAMPLE} -o ${work}/with_pkgconfig $(PKG_CONFIG_PATH=${pc_dir} pkg-config --define-variable=prefix=${work}/prefix --cflags --libs --static dgc)")
run(${work}/with_pkgconfig)
run(${work}/prefix/bin/dgc --version)

# The component torch, from the example's own project.
if(WITH_TORCH)
  run(${CMAKE_COMMAND} -S ${TORCH_EXAMPLE} -B ${work}/torch -DCMAKE_PREFIX_PATH=${work}/prefix)
  run(${CMAKE_COMMAND} --build ${work}/torch)
  execute_process(COMMAND ${work}/torch/mnist --help ERROR_VARIABLE out)
  if(NOT out MATCHES "--epochs")
    message(FATAL_ERROR "mnist --help: ${out}")
  endif()
endif()
