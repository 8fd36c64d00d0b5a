// Labels of calls: derived from the proto and from the routes, and never missing when a call ends.
#include <google/protobuf/descriptor.h>

#include "absl/strings/str_cat.h"
#include "server/apis/http_api.h"
#include "server/calls/rpc_labels.h"
#include "tests/server/server_test_util.h"

namespace ovq::server::test {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

TEST(Labels, OfRpcsAreTheProtosNames) {
  std::vector<std::string> labels;
  for (const char* label : RpcLabels()) labels.emplace_back(label);
  EXPECT_THAT(labels,
              UnorderedElementsAre("Generate", "Chat", "Score", "Tokenize", "Detokenize",
                                   "GetModelInfo", "ApplyTemplate", "CreateSession", "GetSession",
                                   "ListSessions", "DeleteSession", "ForkSession", "RewindSession",
                                   "ExportSession", "ImportSession", "AdminListSessions",
                                   "AdminDeleteSession", "AdminDrain", "AdminGetStatus"));
  EXPECT_STREQ(RpcLabel("ovq.v1.AdminService", "Drain"), "AdminDrain");
}

TEST(Labels, OfHttpAreTheRoutesPatterns) {
  std::vector<std::string> labels;
  for (const char* label : HttpRouteLabels()) labels.emplace_back(label);
  EXPECT_THAT(labels,
              UnorderedElementsAre(
                  "/", "/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/messages",
                  "/v1/messages/count_tokens", "/v1/responses", "/v1/responses/{}",
                  "/v1/responses/{}/input_items", "/tokenize", "/detokenize", "/health", "/version",
                  "/ovq/v1/info", "/ovq/v1/status", "/ovq/v1/generate", "/ovq/v1/sessions",
                  "/ovq/v1/sessions/{}", "/ovq/v1/sessions/{}/fork", "/ovq/v1/sessions/{}/rewind",
                  "/ovq/v1/sessions/{}/generate", "other"));
}

TEST(Labels, ACallWithALabelThatNobodyListedIsCounted) {
  ModelDescription model;
  model.names = {"m"};
  Metrics metrics(model);
  metrics.CallFinished("Embed", absl::StatusCode::kOk, absl::Seconds(1));
  metrics.HttpFinished("/v1/embeddings", 200, absl::Seconds(1));
  const std::string page = metrics.Text();
  EXPECT_THAT(page,
              HasSubstr("ovq_request_duration_seconds_count{model=\"m\",method=\"Embed\"} 1"));
  EXPECT_THAT(page, HasSubstr("ovq_http_request_duration_seconds_count{model=\"m\",route="
                              "\"/v1/embeddings\"} 1"));
}

TEST(Labels, EveryRpcOfTheProtoIsServedAndCounted) {
  TestServer server;
  const google::protobuf::FileDescriptor& file = *v1::GenerateRequest::descriptor()->file();
  for (int i = 0; i < file.service_count(); ++i) {
    for (int k = 0; k < file.service(i)->method_count(); ++k) {
      const std::string service = file.service(i)->full_name();
      const std::string method = file.service(i)->method(k)->name();
      std::string answer;
      // The bytes are no message of any RPC.
      const grpc::Status status =
          RawCall(server.channel(), absl::StrCat("/", service, "/", method), "\x0f", answer);
      EXPECT_NE(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << service << "/" << method;
      EXPECT_THAT(
          server.metrics().Text(),
          HasSubstr(absl::StrCat("ovq_request_duration_seconds_count{model=\"fake\",method=", "\"",
                                 RpcLabel(service, method), "\"} 1")));
    }
  }
}

}  // namespace
}  // namespace ovq::server::test
