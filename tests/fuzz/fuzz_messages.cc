// Fuzzes every method of every service with arbitrary message bytes, one call after another,
// through a whole server on a trivial model. Every call ends with a documented status and leaves
// nothing behind.
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>

#include "tests/fuzz/bytes.h"
#include "tests/fuzz/whole_server.h"

namespace ovq::fuzz {
namespace {

constexpr std::array kFuzzed = {
    "InferenceService/Generate",     "InferenceService/Chat",
    "InferenceService/Score",        "InferenceService/Tokenize",
    "InferenceService/Detokenize",   "InferenceService/ApplyTemplate",
    "InferenceService/GetModelInfo", "SessionService/CreateSession",
    "SessionService/GetSession",     "SessionService/ListSessions",
    "SessionService/DeleteSession",  "SessionService/ForkSession",
    "SessionService/RewindSession",  "SessionService/ExportSession",
    "SessionService/ImportSession",
};

// Statuses in docs/api.md, except those about the server's own state: it is healthy and has no
// other load.
bool IsDocumented(grpc::StatusCode code) {
  switch (code) {
    case grpc::OK:
    case grpc::CANCELLED:
    case grpc::INVALID_ARGUMENT:
    case grpc::DEADLINE_EXCEEDED:
    case grpc::NOT_FOUND:
    case grpc::RESOURCE_EXHAUSTED:
    case grpc::FAILED_PRECONDITION:
    case grpc::OUT_OF_RANGE:
    case grpc::DATA_LOSS:
      return true;
    default:
      return false;
  }
}

// Sends the messages and reads all answers.
grpc::Status Talk(server::test::TestServer& server, const std::string& method,
                  const std::vector<std::string>& messages, std::vector<std::string>& answers) {
  grpc::GenericStub stub(server.channel());
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
  const auto call = stub.PrepareCall(&context, method, &queue);
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    Check(queue.Next(&tag, &ok), "the queue lives");
    return ok;
  };
  call->StartCall(nullptr);
  bool goes = done();
  for (const std::string& message : messages) {
    if (!goes) break;
    const grpc::Slice slice(message);
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    goes = done();
  }
  if (goes) {
    call->WritesDone(nullptr);
    done();
  }
  do {
    grpc::ByteBuffer answer;
    call->Read(&answer, nullptr);
    goes = done();
    grpc::Slice all;
    if (goes && answer.DumpToSingleSlice(&all).ok()) {
      answers.emplace_back(reinterpret_cast<const char*>(all.begin()), all.size());
    }
  } while (goes);
  grpc::Status status;
  call->Finish(&status, nullptr);
  done();
  return status;
}

// Unary calls get one message; streams get several, each after its length.
std::vector<std::string> Messages(const std::string& method, Bytes bytes) {
  std::vector<std::string> messages;
  if (method.ends_with("/Chat") || method.ends_with("/ImportSession")) {
    while (!bytes.empty() && messages.size() < 8)
      messages.emplace_back(bytes.ReadBytes(static_cast<size_t>(bytes.Byte())));
  } else {
    messages.emplace_back(bytes.Rest());
  }
  return messages;
}

// Replaces a run of $ of the same length by a session's id.
void Name(const std::string& session, std::string& message) {
  static const std::string placeholder(session.size(), '$');
  for (size_t at; (at = message.find(placeholder)) != message.npos;)
    message.replace(at, session.size(), session);
}

}  // namespace
}  // namespace ovq::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ovq;
  using namespace ovq::fuzz;
  constexpr int kMostCalls = 6;
  constexpr int kMore = 0x80;  // bit of the method byte: another call follows
  server::test::TestServer& server = WholeServer();
  Bytes bytes(data, size);
  const std::string session = SomeSession(server);
  std::vector<std::string> exported;  // imported if an input sends nothing
  for (int i = 0; i < kMostCalls && (i == 0 || !bytes.empty()); ++i) {
    const int first = bytes.Byte();
    const std::string method =
        std::string("/ovq.v1.") + kFuzzed[static_cast<size_t>(first % kMore) % kFuzzed.size()];
    std::string_view part;
    if (first < kMore) {
      part = bytes.Rest();
    } else {
      const auto high = static_cast<size_t>(bytes.Byte());
      part = bytes.ReadBytes(256 * high + static_cast<size_t>(bytes.Byte()));
    }
    std::vector<std::string> messages =
        Messages(method, {reinterpret_cast<const uint8_t*>(part.data()), part.size()});
    if (part.empty() && method.ends_with("/ImportSession")) messages = exported;
    for (std::string& message : messages) Name(session, message);
    std::vector<std::string> answers;
    const grpc::Status status = Talk(server, method, messages, answers);
    if (!IsDocumented(status.error_code())) {
      std::fprintf(stderr, "%s: code %d: %s\n", method.c_str(), status.error_code(),
                   status.error_message().c_str());
      std::abort();
    }
    Check(status.ok() || !status.error_message().empty(), "an error says what is wrong");
    if (method.ends_with("/ExportSession")) exported = answers;
  }
  EndSessions(server);
  return 0;
}
