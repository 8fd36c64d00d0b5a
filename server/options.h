// Defines the command line, environment and configuration file of ovq-server.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/flags.h"
#include "kernels/common/device_types.h"
#include "kernels/common/tensor.h"
#include "kernels/ops/ops.h"
#include "model/answers/named_calls.h"
#include "model/cache_policy.h"
#include "server/access/security.h"
#include "server/engine/common/engine_config.h"
#include "server/http/browser_rules.h"
#include "server/http/http_server.h"
#include "server/redis/redis_address.h"
#include "server/rpc/grpc_server.h"
#include "server/s3/s3_address.h"
#include "server/telemetry/call_summary.h"
#include "server/telemetry/log.h"
#include "server/telemetry/trace_export.h"

namespace ovq::server {

struct Options {
  std::string model;                            // path of the model folder
  std::vector<std::string> served_model_names;  // empty: ModelName of the folder
  std::string chat_template;                    // path of a file; empty: the folder's
  ListenOptions listen = {.address = "127.0.0.1:50051"};
  HttpOptions http;                                // an empty address disables HTTP
  BrowserRules browsers;                           // without check_host
  std::string metrics_address = "127.0.0.1:9464";  // empty: no metrics endpoint
  kernels::Device device = kernels::Device::kCpu;
  int threads = 0;                                // 0: all processors that the process may use
  std::optional<size_t> state_memory_bytes;       // default: half of the memory that is free after
                                                  // the weights are loaded
  std::optional<size_t> checkpoint_memory_bytes;  // default: an eighth of the state memory
  std::optional<size_t> prefix_memory_bytes;      // default: an eighth of the state memory
  bool insecure_listen = false;                   // allow listening beyond loopback without tokens
  std::optional<size_t> request_memory_bytes;     // default: an eighth of the machine's memory
  std::optional<int32_t> max_batch_tokens;        // default: by the device, in `engine`
  engine::EngineOptions engine;                   // all fields except those from cache_policies
  std::string session_dir;                        // empty: sessions are kept in memory only
  bool session_sync_always = true;
  std::optional<redis::RedisAddress> session_store;  // without the password
  std::string session_store_password_file;           // empty: none
  // A bucket's address lacks the endpoint and the region, which are the next ones.
  std::optional<s3::S3Address> session_bucket;
  std::optional<server::HttpOrigin> session_store_endpoint;  // default: AmazonEndpoint
  std::string session_store_region = "us-east-1";
  std::string session_store_credentials_file;   // empty: none
  TlsTrust session_store_tls;                   // paths
  std::optional<absl::Duration> session_lease;  // default: RedisStoreOptions
  std::optional<int> session_store_replicas;    // default: 0
  std::string fleet_key_file;                   // empty: in session_dir, if there is one
  std::vector<model::CachePolicy> cache_policies = {
      model::CachePolicies().front()};          // offered to sessions; the first is the default
  std::optional<kernels::DType> state_dtype;    // default: ModelConfig::default_dtype
  std::optional<kernels::DType> compute_dtype;  // default: ModelConfig::default_dtype
  kernels::WeightType weights = kernels::WeightType::kAsComputed;
  std::optional<answers::CallSyntax> call_syntax;  // of tool calls; default: the chat template's
  int64_t max_context = 1 << 20;  // most positions of models with full-attention layers
  absl::Duration drain_notice = absl::ZeroDuration();
  absl::Duration drain_timeout = absl::Seconds(30);
  absl::Duration step_timeout = absl::Seconds(60);  // 0: no limit

  LogOptions log;
  LogRequests log_requests = LogRequests::kAll;
  std::optional<TraceCollector> trace_collector;

  SecurityFiles security;
  std::string admin_listen;  // address; empty: no admin service

  // Whether sessions outlive the server.
  bool keeps_sessions() const { return !session_dir.empty() || shares_sessions(); }
  // Whether they are where servers on other machines may share them.
  bool shares_sessions() const { return session_store || session_bucket; }

  // The fields below are for --plan only.
  std::vector<int64_t> plan_slot_caps;  // empty: the model's default cap
  std::vector<int64_t> plan_tokens = {1 << 10, 1 << 15, 1 << 20};
};

// True for HOST:PORT whose host is a loopback address: 127.0.0.0/8, [::1] or localhost.
bool IsLoopback(std::string_view address);

struct CommandLine {
  enum class Action : uint8_t { kServe, kHelp, kVersion, kCheckConfig, kPlan, kHashToken };
  Action action = Action::kServe;
  Options options;
  std::vector<Setting> settings;  // every option, in the order of --help
};

// Parses the options. Flags override the environment, which overrides the file named by --config,
// which overrides the defaults. `args` excludes the program's name. InvalidArgument names the
// source and what was expected.
absl::StatusOr<CommandLine> ParseCommandLine(std::span<const std::string> args,
                                             const EnvLookup& env);
std::string HelpText();

}  // namespace ovq::server
