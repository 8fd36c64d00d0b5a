# ovq_build_stamp(name root): an object library whose one source says what the programs that it is
# linked into are built from (build_stamp.sh), written anew when a source or a flag changes.
set(OVQ_BUILD_STAMP_SCRIPTS "${CMAKE_CURRENT_LIST_DIR}/build_stamp.sh"
                            "${CMAKE_CURRENT_LIST_DIR}/source_hash.sh")
function(ovq_build_stamp name root)
  set(FOLDERS "")
  foreach(folder kernels base model tests/bench)
    list(APPEND FOLDERS "${root}/${folder}/*.h" "${root}/${folder}/*.cc" "${root}/${folder}/*.cu"
         "${root}/${folder}/*.cuh")
  endforeach()
  file(GLOB_RECURSE STAMPED CONFIGURE_DEPENDS ${FOLDERS})
  string(TOUPPER "${CMAKE_BUILD_TYPE}" TYPE)
  set(FLAGS "${CMAKE_CURRENT_BINARY_DIR}/${name}_flags.txt")
  set(TEXT "c++ ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}: ${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${TYPE}}
nvcc ${CMAKE_CUDA_COMPILER_VERSION}: ${CMAKE_CUDA_FLAGS} ${CMAKE_CUDA_FLAGS_${TYPE}} for ${CMAKE_CUDA_ARCHITECTURES}
both: ${OVQ_FLAGS}
")
  file(CONFIGURE OUTPUT "${FLAGS}" CONTENT "${TEXT}" @ONLY)  # written where it differs
  set(SOURCE "${CMAKE_CURRENT_BINARY_DIR}/${name}.cc")
  list(GET OVQ_BUILD_STAMP_SCRIPTS 0 SCRIPT)
  add_custom_command(OUTPUT "${SOURCE}" COMMAND "${SCRIPT}" "${root}" "${FLAGS}" "${SOURCE}"
                     DEPENDS ${STAMPED} "${FLAGS}" ${OVQ_BUILD_STAMP_SCRIPTS} VERBATIM)
  add_library(${name} OBJECT "${SOURCE}")
endfunction()
