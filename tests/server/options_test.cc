#include "server/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops/ops_device.h"

namespace ovq::server {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Environment = std::map<std::string, std::string>;

absl::StatusOr<CommandLine> Parse(const std::vector<std::string>& args,
                                  const Environment& environment = {}) {
  return ParseCommandLine(args, [&](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  });
}

// A config file that is deleted at the end of the test.
class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text)
      : path_(testing::TempDir() + "ovq_options_" + std::to_string(getpid()) + ".conf") {
    std::ofstream(path_) << text;
  }
  ~ConfigFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

TEST(Options, EveryDeviceKeepsEveryTypeOfStates) {
  for (const std::string device : {"cpu", "cuda"}) {
    for (const auto& [name, dtype] : {std::pair("f32", kernels::DType::kF32),
                                      {"bf16", kernels::DType::kBF16},
                                      {"i8", kernels::DType::kI8}}) {
      const auto line = Parse({"--model", "m", "--device", device, "--state-dtype", name});
      ASSERT_TRUE(line.ok()) << line.status();
      EXPECT_EQ(line->options.state_dtype, dtype);
    }
  }
}

TEST(Options, TheReferencesAreForTests) {
  EXPECT_THAT(Parse({"--model", "m", "--device", "ref"}).status().message(),
              HasSubstr("--device: expected cpu or cuda, got 'ref'"));
  EXPECT_EQ(kernels::reference_of<kernels::cpu::Normalize>,
            nullptr);  // as in the server, which links the same libraries
}

TEST(Options, NamesOfTheModel) {
  const auto line = Parse({"--model", "m", "--served-model-name", "org/m,m:8b"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(line->options.served_model_names, testing::ElementsAre("org/m", "m:8b"));
  std::string many = "n0";
  for (int i = 1; i < 17; ++i) many += ",n" + std::to_string(i);
  for (const std::string& names :
       {std::string(), std::string("a,,b"), std::string("a,a"), many, std::string("/a"),
        std::string("a/"), std::string("a b"), std::string(257, 'a')}) {
    EXPECT_THAT(Parse({"--model", "m", "--served-model-name", names}).status().message(),
                HasSubstr("--served-model-name: expected up to 16 different names"))
        << names;
  }
}

TEST(Options, Defaults) {
  const auto line = Parse({"--model", "m"});
  ASSERT_TRUE(line.ok()) << line.status();
  const Options& options = line->options;
  EXPECT_EQ(options.model, "m");
  EXPECT_EQ(options.listen.address, "127.0.0.1:50051");
  EXPECT_EQ(options.metrics_address, "127.0.0.1:9464");
  EXPECT_EQ(options.device, kernels::Device::kCpu);
  EXPECT_FALSE(options.state_memory_bytes.has_value());
  EXPECT_FALSE(options.state_dtype.has_value());
  EXPECT_EQ(options.engine.max_slot_cap, 65536);
  EXPECT_EQ(options.engine.max_sessions, 1024);
  EXPECT_EQ(options.engine.max_batch_tokens, 512);
  EXPECT_EQ(options.engine.session_ttl, absl::Minutes(30));
  EXPECT_EQ(options.drain_timeout, absl::Seconds(30));
  EXPECT_EQ(options.listen.max_message_bytes, size_t{16} << 20);
}

TEST(Options, BatchesAreLargerOnAGpu) {
  EXPECT_EQ(Parse({"--model=m", "--device=cuda"})->options.engine.least_step_time,
            absl::Milliseconds(25));
  EXPECT_EQ(Parse({"--model=m"})->options.engine.least_step_time, absl::ZeroDuration());
  EXPECT_EQ(Parse({"--model=m", "--device=cuda"})->options.engine.max_batch_tokens, 4096);
  EXPECT_EQ(Parse({"--model=m", "--device=cuda", "--max-batch-tokens=9"})
                ->options.engine.max_batch_tokens,
            9);
}

TEST(Options, EveryFlag) {
  const auto line = Parse({"--model=m",
                           "--served-model-name=a,b",
                           "--chat-template=j",
                           "--listen=[::]:0",
                           "--http-listen=127.0.0.1:0",
                           "--http-max-connections=9",
                           "--http-allowed-hosts=a.example,*.b",
                           "--http-allowed-origins=https://c.example",
                           "--metrics-address=",
                           "--device=cuda",
                           "--threads=3",
                           "--state-memory=1.5GiB",
                           "--checkpoint-memory=0",
                           "--prefix-memory=3M",
                           "--request-memory=5M",
                           "--constraint-memory=6M",
                           "--session-dir=s",
                           "--session-sync=interval",
                           "--admission=overcommit",
                           "--imports=replay",
                           "--fleet-key-file=f",
                           "--max-centroids=128",
                           "--max-sessions=7",
                           "--memory=closest-pair,exact",
                           "--state-dtype=bf16",
                           "--compute-dtype=f32",
                           "--weights=int8",
                           "--max-batch-tokens=64",
                           "--max-queue=0",
                           "--max-prompt-tokens=1000",
                           "--max-context=4096",
                           "--session-ttl=1h30m",
                           "--max-session-ttl=48h",
                           "--drain-notice=3s",
                           "--drain-timeout=5s",
                           "--step-timeout=3s",
                           "--target-step-time=40ms",
                           "--speculate=ngram",
                           "--tool-parser=hermes",
                           "--max-message-bytes=1M",
                           "--plan-centroids=64,128",
                           "--plan-tokens=10",
                           "--tls-cert=c",
                           "--tls-key=k",
                           "--tls-client-ca=a",
                           "--tenants=t",
                           "--admin-listen=0.0.0.0:1",
                           "--insecure-listen=yes",
                           "--max-streams-per-connection=5",
                           "--handshake-timeout=2s",
                           "--max-connection-idle=1h",
                           "--log-format=json",
                           "--log-level=warning",
                           "--log-requests=errors",
                           "--log-rate=7",
                           "--trace-collector=https://c:4318/x",
                           "--trace-collector-ca=a"});
  ASSERT_TRUE(line.ok()) << line.status();
  const Options& options = line->options;
  EXPECT_THAT(options.browsers.hosts, testing::ElementsAre("a.example", "*.b"));
  EXPECT_THAT(options.browsers.origins, testing::ElementsAre("https://c.example"));
  EXPECT_THAT(options.served_model_names, testing::ElementsAre("a", "b"));
  EXPECT_EQ(options.chat_template, "j");
  EXPECT_EQ(options.listen.address, "[::]:0");
  EXPECT_EQ(options.http.address, "127.0.0.1:0");
  EXPECT_EQ(options.http.max_connections, 9);
  EXPECT_EQ(options.metrics_address, "");
  EXPECT_EQ(options.device, kernels::Device::kCuda);
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.state_memory_bytes, (size_t{3} << 30) / 2);
  EXPECT_EQ(options.checkpoint_memory_bytes, 0u);
  EXPECT_EQ(options.prefix_memory_bytes, size_t{3} << 20);
  EXPECT_EQ(options.request_memory_bytes, size_t{5} << 20);
  EXPECT_EQ(options.engine.constraint_memory_bytes, size_t{6} << 20);
  EXPECT_EQ(options.session_dir, "s");
  EXPECT_FALSE(options.session_sync_always);
  EXPECT_TRUE(options.engine.overcommit);
  EXPECT_FALSE(options.engine.trust_session_files);
  EXPECT_EQ(options.fleet_key_file, "f");
  EXPECT_EQ(options.engine.max_slot_cap, 128);
  EXPECT_EQ(options.engine.max_sessions, 7);
  EXPECT_THAT(options.cache_policies, testing::ElementsAre(*model::FindCachePolicy("closest-pair"),
                                                           *model::FindCachePolicy("exact")));
  EXPECT_EQ(options.state_dtype, kernels::DType::kBF16);
  EXPECT_EQ(options.compute_dtype, kernels::DType::kF32);
  EXPECT_EQ(options.weights, kernels::WeightType::kInt8);
  EXPECT_EQ(options.engine.max_batch_tokens, 64);
  EXPECT_EQ(options.engine.max_queue, 0);
  EXPECT_EQ(options.engine.max_prompt_tokens, 1000);
  EXPECT_EQ(options.max_context, 4096);
  EXPECT_EQ(options.engine.session_ttl, absl::Minutes(90));
  EXPECT_EQ(options.engine.max_session_ttl, absl::Hours(48));
  EXPECT_EQ(options.drain_timeout, absl::Seconds(5));
  EXPECT_EQ(options.step_timeout, absl::Seconds(3));
  EXPECT_EQ(options.engine.target_step_time, absl::Milliseconds(40));
  EXPECT_EQ(options.engine.speculation, engine::Speculation::kNgram);
  EXPECT_EQ(options.call_syntax->marker, "<tool_call>");
  EXPECT_EQ(options.listen.max_message_bytes, size_t{1} << 20);
  EXPECT_THAT(options.plan_slot_caps, testing::ElementsAre(64, 128));
  EXPECT_THAT(options.plan_tokens, testing::ElementsAre(10));
  EXPECT_EQ(options.security.tls.cert + options.security.tls.key + options.security.tls.client_ca +
                options.security.tenants + options.security.trace_collector_ca,
            "ckata");
  EXPECT_EQ(options.admin_listen, "0.0.0.0:1");
  EXPECT_TRUE(options.insecure_listen);
  EXPECT_EQ(options.listen.max_streams_per_connection, 5);
  EXPECT_EQ(options.listen.handshake_timeout, absl::Seconds(2));
  EXPECT_EQ(options.listen.max_connection_idle, absl::Hours(1));
  EXPECT_EQ(options.log.format, LogFormat::kJson);
  EXPECT_EQ(options.log.level, LogLevel::kWarning);
  EXPECT_EQ(options.log_requests, LogRequests::kErrors);
  EXPECT_EQ(options.log.lines_per_second, 7);
  ASSERT_TRUE(options.trace_collector.has_value());
  EXPECT_TRUE(options.trace_collector->tls);
  EXPECT_EQ(options.trace_collector->host, "c");
  EXPECT_EQ(options.trace_collector->path, "/x");
  // Every flag was tested above; those that exclude --session-dir are in SessionsAreInOnePlace.
  const auto stored =
      Parse({"--model=m", "--session-store=rediss://u@h:7/2", "--session-store-password-file=p",
             "--session-store-cert=c", "--session-store-key=k", "--session-lease=3s",
             "--session-store-replicas=2"});
  ASSERT_TRUE(stored.ok()) << stored.status();
  const auto bucket = Parse({"--model=m", "--session-store=s3://abc",
                             "--session-store-endpoint=https://h", "--session-store-region=r",
                             "--session-store-credentials-file=c", "--session-store-ca=a"});
  ASSERT_TRUE(bucket.ok()) << bucket.status();
  for (size_t i = 0; i < line->settings.size(); ++i) {
    const Setting& setting = line->settings[i];
    std::string_view origin = setting.origin;
    if (origin == "default") origin = stored->settings[i].origin;
    if (origin == "default") origin = bucket->settings[i].origin;
    EXPECT_EQ(origin, "--" + setting.name);
  }
}

TEST(Options, BeyondLoopbackWithTokensOrByWish) {
  EXPECT_TRUE(Parse({"--model", "m", "--listen", "0.0.0.0:1", "--tenants", "t"}).ok());
  EXPECT_TRUE(Parse({"--model", "m", "--listen", "0.0.0.0:1", "--insecure-listen", "yes"}).ok());
  EXPECT_TRUE(Parse({"--model", "m", "--listen", "[::1]:1", "--metrics-address", ""}).ok());
  EXPECT_TRUE(Parse({"--model", "m", "--http-listen", "[::1]:1"}).ok());
  EXPECT_FALSE(Parse({"--model", "m", "--http-listen", "0.0.0.0:1"}).ok());
}

TEST(Options, ActionsWithoutAModel) {
  EXPECT_EQ(Parse({"--help"})->action, CommandLine::Action::kHelp);
  EXPECT_EQ(Parse({"--version"})->action, CommandLine::Action::kVersion);
  EXPECT_EQ(Parse({"--hash-token"})->action, CommandLine::Action::kHashToken);
}

TEST(Options, AdminOnLoopbackNeedsNoTenants) {
  for (const auto& [address, loopback] : std::map<std::string, bool>{{"127.0.0.1:1", true},
                                                                     {"127.9.9.9:1", true},
                                                                     {"localhost:1", true},
                                                                     {"[::1]:1", true},
                                                                     {"0.0.0.0:1", false},
                                                                     {"[::]:1", false},
                                                                     {"128.0.0.1:1", false},
                                                                     {"localhost.x:1", false}}) {
    EXPECT_EQ(IsLoopback(address), loopback) << address;
    EXPECT_EQ(Parse({"--model=m", "--admin-listen=" + address}).ok(), loopback) << address;
  }
}

TEST(Options, FlagsWinOverEnvironmentOverFile) {
  const ConfigFile file(
      "# a comment\n\nmodel = from_file\n max-sessions=1 \nthreads = 1\nmax-queue = 9\n"
      "metrics-address =\n");
  const auto line = Parse({"--config", file.path(), "--threads", "3"},
                          {{"OVQ_THREADS", "2"}, {"OVQ_MAX_SESSIONS", "2"}});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->options.model, "from_file");
  EXPECT_EQ(line->options.threads, 3);
  EXPECT_EQ(line->options.engine.max_sessions, 2);
  EXPECT_EQ(line->options.engine.max_queue, 9);
  EXPECT_EQ(line->options.metrics_address, "");
  std::map<std::string, std::string> said;
  for (const Setting& setting : line->settings) {
    said[setting.name] = setting.value + " # " + setting.origin;
  }
  EXPECT_EQ(said["threads"], "3 # --threads");
  EXPECT_EQ(said["max-sessions"], "2 # OVQ_MAX_SESSIONS");
  EXPECT_EQ(said["max-queue"], "9 # " + file.path() + ":6: max-queue");
  EXPECT_EQ(said["drain-timeout"], "30s # default");
  const auto by_environment = Parse({}, {{"OVQ_CONFIG", file.path()}});
  ASSERT_TRUE(by_environment.ok()) << by_environment.status();
  EXPECT_EQ(by_environment->options.engine.max_sessions, 1);
}

TEST(Options, BadInputNamesTheCulprit) {
  const struct {
    std::vector<std::string> args;
    Environment environment;
    const char* culprit;
    const char* expected;
  } cases[] = {
      {{}, {}, "--model", "a model folder"},
      {{"--model"}, {}, "--model", "a value"},
      {{"--model", "m", "--modle", "x"}, {}, "--modle", "--help"},
      {{"--model", "m", "stray"}, {}, "stray", "--help"},
      {{"--model", "m", "--listen", "50051"}, {}, "--listen", "HOST:PORT"},
      {{"--model", "m", "--listen", "h:70000"}, {}, "--listen", "65535"},
      {{"--model", "m", "--device", "tpu"}, {}, "--device", "cpu or cuda"},
      {{"--model", "m", "--threads", "-1"}, {}, "--threads", "0 to 1024"},
      {{"--model", "m", "--threads", "2x"}, {}, "--threads", "'2x'"},
      {{"--model", "m", "--max-centroids", "0"}, {}, "--max-centroids", "2 to"},
      {{"--model", "m", "--max-sessions", "0"}, {}, "--max-sessions", "1 to"},
      {{"--model", "m", "--state-memory", "8Q"}, {}, "--state-memory", "512M"},
      {{"--model", "m", "--state-memory", "-1G"}, {}, "--state-memory", "512M"},
      {{"--model", "m", "--state-memory", ""}, {}, "--state-memory", "512M"},
      {{"--model", "m", "--state-dtype", "f16"}, {}, "--state-dtype", "f32, bf16 or i8"},
      {{"--model", "m", "--session-ttl", "0s"}, {}, "--session-ttl", "with its unit from"},
      {{"--model", "m", "--session-ttl", "5"}, {}, "--session-ttl", "with its unit from"},
      {{"--model", "m", "--listen", "0.0.0.0:1"}, {}, "--listen", "others need --tenants"},
      {{"--model", "m", "--listen", "[::]:1", "--insecure-listen", "no"},
       {},
       "--listen",
       "loopback"},
      {{"--model", "m", "--metrics-address", "10.0.0.1:1"},
       {},
       "--metrics-address",
       "--insecure-listen=yes"},
      {{"--model", "m", "--insecure-listen", "true"}, {}, "--insecure-listen", "yes"},
      {{"--model", "m", "--session-ttl", "25h"}, {}, "--session-ttl", "at most --max-session-ttl"},
      {{"--model", "m", "--drain-timeout", "-3s"}, {}, "--drain-timeout", "with its unit from"},
      {{"--model", "m", "--max-message-bytes", "4G"}, {}, "--max-message-bytes", "below 2G"},
      {{"--model", "m", "--memory", "paper,windows"}, {}, "--memory", "several with commas"},
      {{"--model", "m", "--memory", "paper,"}, {}, "--memory", "several with commas"},
      {{"--model", "m", "--memory", "paper,paper"}, {}, "--memory", "several with commas"},
      {{"--model", "m", "--plan"}, {}, "--plan", "--state-memory"},
      {{"--model", "m", "--max-centroids", "64", "--plan-centroids", "65"},
       {},
       "--plan-centroids",
       "64, got 65"},
      {{"--model", "m", "--plan-tokens", "1,,2"}, {}, "--plan-tokens", "''"},
      {{"--model", "m", "--plan-centroids", "64,1"}, {}, "--plan-centroids", "'1'"},
      {{"--model", "m", "--config", "/nonexistent/file"}, {}, "--config", "/nonexistent/file"},
      {{"--model", "m"}, {{"OVQ_MAX_QUEUE", "many"}}, "OVQ_MAX_QUEUE", "'many'"},
  };
  for (const auto& c : cases) {
    const auto line = Parse(c.args, c.environment);
    ASSERT_FALSE(line.ok()) << c.culprit;
    EXPECT_THAT(std::string(line.status().message()),
                AllOf(HasSubstr(c.culprit), HasSubstr(c.expected)));
    EXPECT_EQ(line.status().message().find('\n'), absl::string_view::npos);
  }
}

TEST(Options, BadFileNamesTheLine) {
  const struct {
    const char* text;
    const char* expected;
  } cases[] = {
      {"model = m\nthreds = 2\n", ":2: threds: unknown name"},
      {"model = m\n\nthreads = x\n", ":3: threads: expected"},
      {"model\n", ":1: model: expected name = value"},
      {"config = other\n", ":1: config: unknown name"},
  };
  for (const auto& c : cases) {
    const ConfigFile file(c.text);
    const auto line = Parse({"--config", file.path()});
    ASSERT_FALSE(line.ok()) << c.text;
    EXPECT_THAT(std::string(line.status().message()), HasSubstr(file.path() + c.expected));
  }
}

TEST(Options, HelpSaysRanges) {
  const std::string help = HelpText();
  EXPECT_THAT(help, HasSubstr("a duration with its unit from 1ms to 1h; default: 10s; "));
  EXPECT_THAT(help, HasSubstr("HOST:PORT with a port from 0 to 65535; default: 127.0.0.1:50051; "));
  constexpr std::string_view kRange = "\n      a whole number from ";
  int found = 0;
  for (size_t at = help.find(kRange); at != std::string::npos; at = help.find(kRange, at)) {
    const size_t name = help.rfind("\n  --", at) + 3;
    const std::string flag = help.substr(name, help.find(' ', name) - name);
    at += kRange.size();
    size_t digits = 0;
    const int64_t low = std::stoll(help.substr(at), &digits);
    const int64_t high = std::stoll(help.substr(at + digits + std::string(" to ").size()));
    const auto takes = [&flag](int64_t value) {
      std::vector<std::string> line = {"--model=m", "--max-centroids=16777216",
                                       flag + "=" + std::to_string(value)};
      if (flag == "--session-store-replicas") line.push_back("--session-store=redis://h");
      return Parse(line).ok();
    };
    SCOPED_TRACE(flag);
    EXPECT_TRUE(takes(low));
    EXPECT_TRUE(takes(high));
    EXPECT_FALSE(takes(low - 1));
    EXPECT_FALSE(takes(high + 1));
    ++found;
  }
  EXPECT_EQ(found, 13);
}

// The key vouches for states, so that a server that takes any must not have it.
TEST(Options, AFleetKeyFileAndTrustInAnyFileExcludeOneAnother) {
  EXPECT_EQ(Parse({"--model=m", "--fleet-key-file=k"})->options.fleet_key_file, "k");
  EXPECT_TRUE(Parse({"--model=m", "--imports=trust"}).ok());
  EXPECT_THAT(
      std::string(Parse({"--model=m", "--fleet-key-file=k", "--imports=trust"}).status().message()),
      HasSubstr("--imports=trust: expected replay with --fleet-key-file"));
}

TEST(Options, SessionsAreInOnePlace) {
  const auto line = Parse({"--model=m", "--session-store=redis://ann@cache:7000/2",
                           "--session-store-password-file=p", "--session-lease=4s",
                           "--session-store-replicas=1", "--admission=overcommit"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->options.session_store->Text(), "redis://ann@cache:7000/2");
  EXPECT_EQ(line->options.session_store_password_file, "p");
  EXPECT_EQ(line->options.session_lease, absl::Seconds(4));
  EXPECT_EQ(line->options.session_store_replicas, 1);
  EXPECT_TRUE(line->options.keeps_sessions());
  EXPECT_FALSE(Parse({"--model=m"})->options.keeps_sessions());
  const auto error = [](std::vector<std::string> args) {
    args.push_back("--model=m");
    return std::string(Parse(args).status().message());
  };
  const std::string store = "--session-store=redis://cache";
  EXPECT_THAT(error({store, "--session-dir=s"}), HasSubstr("expected no --session-dir with it"));
  EXPECT_THAT(error({store, "--session-sync=interval"}), HasSubstr("expected --session-dir"));
  EXPECT_THAT(error({"--session-sync=interval"}), HasSubstr("expected --session-dir with it"));
  EXPECT_THAT(error({store, "--session-lease=10ms"}), HasSubstr("--session-lease: expected"));
  EXPECT_THAT(error({store, "--session-store-replicas=-1"}), HasSubstr("expected a whole number"));
  EXPECT_THAT(error({store, "--session-store-ca=c"}),
              HasSubstr("--session-store-ca: expected --session-store rediss:// or s3:// with it"));
  EXPECT_THAT(error({store, "--session-store-cert=c", "--session-store-key=k"}),
              HasSubstr("--session-store-cert: expected --session-store rediss:// with it"));
  const std::string secure = "--session-store=rediss://cache";
  EXPECT_THAT(error({secure, "--session-store-cert=c"}), HasSubstr("expected --session-store-key"));
  EXPECT_THAT(error({secure, "--session-store-key=k"}), HasSubstr("expected --session-store-cert"));
  const auto tls = Parse({"--model=m", secure, "--session-store-ca=a", "--session-store-cert=c",
                          "--session-store-key=k"});
  ASSERT_TRUE(tls.ok()) << tls.status();
  EXPECT_EQ(tls->options.session_store->Text(), "rediss://cache:6379/0");
  EXPECT_EQ(tls->options.session_store_tls.cert, "c");
  EXPECT_EQ(tls->options.session_store_tls.key, "k");
  EXPECT_THAT(error({"--session-store=redis://ann@cache"}),
              HasSubstr("expected --session-store-password-file with the user ann"));
  EXPECT_THAT(error({"--session-lease=5s"}), HasSubstr("expected --session-store with it"));
  for (const char* flag : {"--session-store-replicas=0", "--session-store-password-file=p"}) {
    EXPECT_THAT(error({flag}), HasSubstr("expected --session-store redis:// with it"));
  }
  EXPECT_THAT(error({"--admission=overcommit"}),
              HasSubstr("expected --session-dir or --session-store"));
}

TEST(Options, SessionsMayBeInABucket) {
  const std::string store = "--session-store=s3://sessions/of/ann";
  const std::string key = "--session-store-credentials-file=c";
  const auto line = Parse({"--model=m", store, key, "--session-store-endpoint=https://h:9000",
                           "--session-store-region=eu-west-1", "--session-store-ca=ca",
                           "--session-lease=4s", "--admission=overcommit"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->options.session_bucket->Text(), "s3://sessions/of/ann");
  EXPECT_FALSE(line->options.session_store.has_value());
  EXPECT_EQ(line->options.session_store_endpoint->Url(), "https://h:9000");
  EXPECT_EQ(line->options.session_store_region, "eu-west-1");
  EXPECT_EQ(line->options.session_store_credentials_file, "c");
  EXPECT_EQ(line->options.session_store_tls.ca, "ca");
  EXPECT_TRUE(line->options.keeps_sessions());
  // The last one of two counts.
  const auto last = Parse({"--model=m", store, "--session-store=redis://cache"});
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_FALSE(last->options.session_bucket.has_value());
  const auto error = [](std::vector<std::string> args) {
    args.push_back("--model=m");
    return std::string(Parse(args).status().message());
  };
  EXPECT_THAT(error({"--session-store=s3://x"}), HasSubstr("expected s3://BUCKET[/PREFIX]"));
  for (const char* other : {"https://cache", "S3://sessions", "ann:secret@cache"}) {
    const std::string message = error({std::string("--session-store=") + other});
    EXPECT_THAT(message, HasSubstr("[/DB] or s3://BUCKET[/PREFIX], got a text that begins"));
    EXPECT_THAT(message, testing::Not(HasSubstr(other)));
  }
  EXPECT_THAT(error({store}), HasSubstr("expected --session-store-credentials-file with s3://"));
  EXPECT_THAT(error({store, key, "--session-dir=s"}), HasSubstr("expected no --session-dir"));
  EXPECT_THAT(error({store, key, "--session-store-endpoint=h"}),
              HasSubstr("--session-store-endpoint: expected http[s]://HOST[:PORT]"));
  EXPECT_THAT(error({store, key, "--session-store-region=a b"}),
              HasSubstr("--session-store-region: expected the name of a region"));
  EXPECT_THAT(error({store, key, "--session-store-ca=ca", "--session-store-endpoint=http://h"}),
              HasSubstr("--session-store-ca: expected --session-store-endpoint https:// with it"));
  for (const char* flag : {"--session-store-replicas=1", "--session-store-password-file=p"}) {
    EXPECT_THAT(error({store, key, flag}), HasSubstr("expected --session-store redis:// with it"));
  }
  EXPECT_THAT(error({"--session-store-ca=a"}), HasSubstr("expected --session-store rediss:// or"));
  for (const char* flag : {"--session-store-endpoint=https://h", "--session-store-region=r",
                           "--session-store-credentials-file=c"}) {
    EXPECT_THAT(error({flag}), HasSubstr("expected --session-store s3:// with it")) << flag;
    EXPECT_THAT(error({flag, "--session-store=redis://h"}),
                HasSubstr("expected --session-store s3:// with it"));
  }
}

TEST(Options, HelpListsEveryFlagWithItsTwin) {
  EXPECT_EQ(Parse({"--plan", "--model", "m", "--state-memory", "1G"})->action,
            CommandLine::Action::kPlan);
  EXPECT_EQ(Parse({"--check-config", "--model", "m"})->action, CommandLine::Action::kCheckConfig);
  const std::string help = HelpText();
  for (const char* flag : {"model",
                           "listen",
                           "metrics-address",
                           "device",
                           "threads",
                           "state-memory",
                           "checkpoint-memory",
                           "prefix-memory",
                           "constraint-memory",
                           "request-memory",
                           "session-dir",
                           "session-sync",
                           "session-store",
                           "session-store-password-file",
                           "session-store-endpoint",
                           "session-store-region",
                           "session-store-credentials-file",
                           "session-store-ca",
                           "session-store-cert",
                           "session-store-key",
                           "session-lease",
                           "session-store-replicas",
                           "admission",
                           "imports",
                           "fleet-key-file",
                           "max-centroids",
                           "max-sessions",
                           "memory",
                           "state-dtype",
                           "compute-dtype",
                           "max-batch-tokens",
                           "max-queue",
                           "max-prompt-tokens",
                           "max-context",
                           "session-ttl",
                           "max-session-ttl",
                           "drain-timeout",
                           "step-timeout",
                           "max-message-bytes",
                           "plan-centroids",
                           "plan-tokens",
                           "config"}) {
    EXPECT_THAT(help, HasSubstr(std::string("--") + flag + " "));
  }
  EXPECT_THAT(help, HasSubstr("OVQ_STATE_MEMORY"));
}

}  // namespace
}  // namespace ovq::server
