# A negative control: decode attention with one mistake, whose tests must fail wherever the kernels run.
# The accumulators are not scaled when a row's highest score rises, which no crash and no check of
# memory would tell.
set(SOURCE "${PROJECT_SOURCE_DIR}/kernels/mixers/common/cuda/attend_decode_mma.cu")
set(RIGHT "out.acc[n][e] *= scale[e / 2];")
file(READ "${SOURCE}" TEXT)
string(FIND "${TEXT}" "${RIGHT}" PLACE)
if(PLACE EQUAL -1)
  message(FATAL_ERROR "tests/gpu/mutant.cmake: ${SOURCE} has no line \"${RIGHT}\"")
endif()
string(REPLACE "${RIGHT}" "out.acc[n][e] *= 1;" TEXT "${TEXT}")
set(MUTANT "${CMAKE_CURRENT_BINARY_DIR}/attend_mutant.cu")
file(CONFIGURE OUTPUT "${MUTANT}" CONTENT "${TEXT}" @ONLY)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${SOURCE}")
# What it defines comes before the library's, of which that file is then left out.
set(MUTANT_SOURCES "${MUTANT}" folders.cc test_util.cc kernels/mixers/attend_cuda_test.cc)
