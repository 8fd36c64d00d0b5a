// ovq-chat: talks to an ovq-server from a terminal or a script.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/signals.h"
#include "base/text.h"
#include "clients/channel/channel.h"
#include "clients/chat/conversation.h"
#include "clients/chat/options.h"
#include "clients/chat/terminal.h"

namespace ovq {
namespace {

constexpr int kExitError = 1;
constexpr int kExitUsage = 2;
constexpr size_t kMaxQuestionBytes = size_t{1} << 30;
constexpr int kExitInterrupted = 130;  // as shells report SIGINT

int Fail(int code, absl::string_view message) {
  std::fputs(absl::StrCat("ovq-chat: ", message, "\n").c_str(), stderr);
  return code;
}

int FailWith(const grpc::Status& status, const std::string& request_id) {
  const std::string request = request_id.empty() ? "" : absl::StrCat(" (request ", request_id, ")");
  return Fail(kExitError, absl::StrCat(ToStatus(status).ToString(), request));
}

// Empty if the text can be sent, else what is wrong with it.
std::string CheckQuestion(const std::string& text) {
  const std::optional<size_t> invalid = FirstInvalidUtf8(text);
  return invalid ? absl::StrCat("the question is not valid UTF-8 at byte ", *invalid) : "";
}

// A call of SessionService; id: of the session it is about, or "".
struct SessionCall {
  SessionCall(const Connection& connection, const std::string& id)
      : stub(v1::SessionService::NewStub(connection.channel)) {
    connection.Authorize(context, SessionKeyOf(id));
  }

  const std::unique_ptr<v1::SessionService::Stub> stub;
  grpc::ClientContext context;
};

// Null, and it has said why, if that fails.
std::FILE* OpenFile(const std::string& path, const char* mode) {
  std::FILE* file = std::fopen(path.c_str(), mode);
  if (file == nullptr) Fail(kExitError, absl::StrCat(path, ": ", std::strerror(errno)));
  return file;
}

// Calls a method of SessionService for a session, and says why if that fails.
template <class Request, class Response>
bool CallForSession(const Connection& connection, const std::string& id,
                    grpc::Status (v1::SessionService::Stub::*method)(grpc::ClientContext*,
                                                                     const Request&, Response*),
                    Response& response, Request request = {}) {
  SessionCall call(connection, id);
  request.set_session_id(id);
  const grpc::Status status = (call.stub.get()->*method)(&call.context, request, &response);
  if (!status.ok()) FailWith(status, RequestIdOf(call.context));
  return status.ok();
}

void ForkSession(const Connection& connection, const std::string& id) {
  v1::ForkSessionResponse forked;
  if (!CallForSession(connection, id, &v1::SessionService::Stub::ForkSession, forked)) return;
  for (const v1::Session& session : forked.sessions()) {
    std::fputs(absl::StrCat("session ", session.session_id(), "\n").c_str(), stderr);
  }
}

void Undo(const Connection& connection, Conversation& conversation) {
  const std::optional<uint64_t> position = conversation.BeforeLast();
  if (!position) {
    std::fputs("ovq-chat: nothing was asked here that could be taken back\n", stderr);
    return;
  }
  v1::RewindSessionRequest request;
  request.set_position(*position);
  v1::RewindSessionResponse rewound;
  if (!CallForSession(connection, conversation.session().session_id(),
                      &v1::SessionService::Stub::RewindSession, rewound, request)) {
    return;
  }
  conversation.Undone();
  std::fputs(absl::StrCat("[back at position ", *position, "]\n").c_str(), stderr);
}

// Into a new file, which does not stay if the call fails.
void SaveSession(const Connection& connection, const std::string& id, const std::string& path) {
  std::FILE* file = OpenFile(path, "wbx");
  if (file == nullptr) return;
  SessionCall call(connection, id);
  v1::ExportSessionRequest request;
  request.set_session_id(id);
  const auto reader = call.stub->ExportSession(&call.context, request);
  v1::SessionBytes part;
  size_t bytes = 0;
  bool written = true;
  while (written && reader->Read(&part)) {
    written = std::fwrite(part.data().data(), 1, part.data().size(), file) == part.data().size();
    bytes += part.data().size();
  }
  written = std::fclose(file) == 0 && written;
  if (!written) call.context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (written && status.ok()) {
    std::fputs(absl::StrCat("[", bytes, " bytes in ", path, "]\n").c_str(), stderr);
    return;
  }
  std::remove(path.c_str());
  if (written) {
    FailWith(status, RequestIdOf(call.context));
  } else {
    Fail(kExitError, absl::StrCat(path, ": cannot be written"));
  }
}

void LoadSession(const Connection& connection, const std::string& path) {
  constexpr size_t kPartBytes = size_t{1} << 20;
  std::FILE* file = OpenFile(path, "rb");
  if (file == nullptr) return;
  SessionCall call(connection, "");
  v1::Session session;
  const auto writer = call.stub->ImportSession(&call.context, &session);
  std::string buffer(kPartBytes, 0);
  v1::SessionBytes part;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), file)) {
    part.set_data(buffer.data(), n);
    if (!writer->Write(part)) break;
  }
  std::fclose(file);
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) {
    FailWith(status, RequestIdOf(call.context));
    return;
  }
  std::fputs(absl::StrCat("session ", session.session_id(), "\n").c_str(), stderr);
}

void PrintSession(const Connection& connection, const std::string& id) {
  v1::Session session;
  if (!CallForSession(connection, id, &v1::SessionService::Stub::GetSession, session)) return;
  const std::string line = absl::StrCat(
      "[session ", id, " | position ", session.position(), " | prompt ",
      session.prompt_tokens_total(), " tokens | generated ", session.generated_tokens_total(),
      " tokens | state ", HumanBytes(static_cast<double>(session.state_bytes())), " of at most ",
      HumanBytes(static_cast<double>(session.state_bytes_cap())), " | centroids ",
      session.live_centroids(), " of at most ", session.max_centroids(), "]\n");
  std::fputs(line.c_str(), stderr);
}

// True unless the call ended.
bool Converse(Conversation& conversation, const Connection& connection, LineReader& lines) {
  while (true) {
    std::fputs("> ", stderr);
    const std::optional<std::string> line = lines.Next();
    if (!line || *line == "/quit") return true;
    if (*line == "/stats") {
      PrintSession(connection, conversation.session().session_id());
    } else if (*line == "/fork") {
      ForkSession(connection, conversation.session().session_id());
    } else if (line->starts_with("/save ")) {
      SaveSession(connection, conversation.session().session_id(), line->substr(6));
    } else if (line->starts_with("/load ")) {
      LoadSession(connection, line->substr(6));
    } else if (*line == "/undo") {
      Undo(connection, conversation);
    } else if (const std::string wrong = CheckQuestion(*line); !wrong.empty()) {
      Fail(kExitError, wrong);
    } else if (!line->empty() && !conversation.Ask(*line)) {
      return false;
    }
  }
}

int Run(const ChatOptions& options, const std::optional<std::string>& question) {
  BlockSignals({SIGINT});
  const absl::StatusOr<Connection> connection = Connect(options.connect);
  if (!connection.ok()) return Fail(kExitUsage, connection.status().message());
  Conversation conversation(*connection, options);
  LineReader lines;
  bool whole = false;
  {
    const SignalWaiter interrupts({SIGINT}, [&](int) {
      if (conversation.OnInterrupt()) lines.Stop();
    });
    if (conversation.Open()) {
      if (options.open.keep_session()) {
        std::fputs(absl::StrCat("session ", conversation.session().session_id(), "\n").c_str(),
                   stderr);
      }
      whole = question ? conversation.Ask(*question) : Converse(conversation, *connection, lines);
    }
  }
  const grpc::Status status = conversation.Close();
  const bool aborted = conversation.interrupted() && status.error_code() == grpc::CANCELLED;
  if (!status.ok() && !aborted) return FailWith(status, conversation.RequestId());
  if (!whole && !aborted) return Fail(kExitError, "the server ended the conversation");
  return conversation.interrupted() && (question || aborted) ? kExitInterrupted : 0;
}

// What --prompt, --file or a pipe brings; none for a conversation.
absl::StatusOr<std::optional<std::string>> ReadQuestion(const ChatOptions& options) {
  absl::StatusOr<std::string> text;
  if (options.file) {
    text = ReadFileOrPipe(*options.file, kMaxQuestionBytes);
  } else if (options.prompt || options.interactive || isatty(STDIN_FILENO) != 0) {
    return options.prompt;
  } else {
    text = ReadStream(stdin, "stdin", kMaxQuestionBytes);
  }
  if (!text.ok()) return text.status();
  return *std::move(text);
}

int Main(const std::vector<std::string>& args) {
  absl::StatusOr<ChatOptions> options = ParseOptions(args);
  if (!options.ok()) return Fail(kExitUsage, options.status().message());
  if (options->help) {
    std::fputs(HelpText().c_str(), stdout);
    return 0;
  }
  const absl::StatusOr<std::optional<std::string>> question = ReadQuestion(*options);
  if (!question.ok()) return Fail(kExitError, question.status().message());
  options->interactive = !question->has_value();
  if (*question) {
    const std::string invalid = CheckQuestion(**question);
    if (!invalid.empty()) return Fail(kExitError, invalid);
  }
  return Run(*options, *question);
}

}  // namespace
}  // namespace ovq

int main(int argc, char** argv) {
  return ovq::Main(std::vector<std::string>(argv + 1, argv + argc));
}
