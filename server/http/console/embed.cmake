# Writes the console's files into a source, as bytes: cmake -D FOLDER=... -D OUT=... -P embed.cmake
# The names are of use in addresses, so what else lies in the folder stays out.
set(MEDIA_TYPES html text/html css text/css js text/javascript svg image/svg+xml)
file(GLOB FILES RELATIVE "${FOLDER}" "${FOLDER}/*.html" "${FOLDER}/*.css" "${FOLDER}/*.js" "${FOLDER}/*.svg")
list(SORT FILES)
set(ARRAYS "")
set(ROWS "")
set(NUMBER 0)
string(REPEAT "0x..," 20 LINE)
foreach(name ${FILES})
  file(READ "${FOLDER}/${name}" HEX HEX)
  file(SHA256 "${FOLDER}/${name}" DIGEST)
  string(SUBSTRING "${DIGEST}" 0 32 DIGEST)
  string(REGEX REPLACE "^.*\\." "" ENDING "${name}")
  list(FIND MEDIA_TYPES "${ENDING}" INDEX)
  math(EXPR INDEX "${INDEX} + 1")
  list(GET MEDIA_TYPES ${INDEX} MEDIA_TYPE)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," BYTES "${HEX}")
  string(REGEX REPLACE "(${LINE})" "\\1\n" BYTES "${BYTES}")
  string(APPEND ARRAYS "constexpr unsigned char kFile${NUMBER}[] = {\n${BYTES}};\n")
  string(APPEND ROWS "    Make(\"${name}\", \"${MEDIA_TYPE}; charset=utf-8\", \"\\\"${DIGEST}\\\"\", kFile${NUMBER}),\n")
  math(EXPR NUMBER "${NUMBER} + 1")
endforeach()
file(WRITE "${OUT}" "// Made by embed.cmake.
#include \"server/http/console/files.h\"

namespace ovq::server {
namespace {

${ARRAYS}
template <size_t kSize>
ConsoleFile Make(const char* name, const char* media_type, const char* etag, const unsigned char (&bytes)[kSize]) {
  return {name, media_type, etag, {reinterpret_cast<const char*>(bytes), kSize}};
}

}  // namespace

std::span<const ConsoleFile> ConsoleFiles() {
  static const ConsoleFile files[] = {
${ROWS}  };
  return files;
}

}  // namespace ovq::server
")
