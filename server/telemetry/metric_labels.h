// What the labels of the metrics say.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ovq {

// The RPCs, as the label `method`.
enum class Method : uint8_t {
  kGenerate,
  kChat,
  kScore,
  kTokenize,
  kDetokenize,
  kGetModelInfo,
  kCreateSession,
  kGetSession,
  kListSessions,
  kDeleteSession,
  kForkSession,
  kRewindSession,
  kExportSession,
  kImportSession,
  kAdminListSessions,
  kAdminDeleteSession,
  kAdminDrain,
  kAdminGetStatus,
};
inline constexpr int kMethods = 18;
const char* MethodName(Method method);  // "Generate", ...

// Why a call was not let in.
enum class AuthFailure : uint8_t { kMissing, kMalformed, kUnknown, kForbidden };
inline constexpr std::array<const char*, 4> kAuthFailures = {"missing", "malformed", "unknown",
                                                             "forbidden"};
// What is read from files and read again when they change.
enum class Credentials : uint8_t { kTls, kTenants };
inline constexpr std::array<const char*, 2> kCredentials = {"tls", "tenants"};

// What ovq_model_info, ovq_build_info and the constant gauges say.
struct MetricsInfo {
  std::string model;  // the label of every family
  std::string version;
  std::string fingerprint;
  std::string device;
  std::string compute_dtype;
  std::string state_dtype;
  size_t weight_bytes = 0;
  bool has_gpu = false;         // its memory is reported, too
  bool has_dictionary = false;  // some layer grows centroids
};

}  // namespace ovq
