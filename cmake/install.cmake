include(CMakePackageConfigHelpers)

install(TARGETS dgc_core EXPORT dgcTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET dgc_torch)
  install(TARGETS dgc_torch EXPORT dgcTorchTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(TARGET dgc_command)
  install(TARGETS dgc_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY include/dgc DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_BINARY_DIR}/include/dgc/version.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dgc)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dgc)
install(EXPORT dgcTargets NAMESPACE dgc:: DESTINATION ${package_dir})
if(TARGET dgc_torch)
  install(EXPORT dgcTorchTargets NAMESPACE dgc:: DESTINATION ${package_dir})
endif()
configure_package_config_file(cmake/dgcConfig.cmake.in dgcConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(dgcConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dgcConfig.cmake ${PROJECT_BINARY_DIR}/dgcConfigVersion.cmake
              cmake/dependencies.cmake
        DESTINATION ${package_dir})

# Neither Gloo nor every MPI has a pkg-config file.
set(DGC_ENGINE_LIBS "")
if(DGC_WITH_GLOO)
  string(APPEND DGC_ENGINE_LIBS "-lgloo ")
endif()
if(DGC_WITH_MPI)
  list(JOIN MPI_CXX_LIBRARIES " " mpi_libraries)
  string(APPEND DGC_ENGINE_LIBS "${mpi_libraries}")
endif()
configure_file(cmake/dgc.pc.in dgc.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/dgc.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
