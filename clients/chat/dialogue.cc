#include "clients/chat/dialogue.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text.h"

namespace ovq::clients {
namespace {

constexpr auto kCheckTime = std::chrono::seconds(5);

std::string Millions(uint64_t parameters) {
  return absl::StrFormat("%.1fM parameters", static_cast<double>(parameters) / 1e6);
}

// Validates the turn's settings on the server with a request for an empty answer; returns the
// error, empty if none. An invalid turn would end the call and lose a session that is not kept.
std::string Fault(const Connection& connection, const v1::ChatTurn& turn) {
  v1::GenerateRequest request;
  *request.mutable_sampling() = turn.sampling();
  *request.mutable_stop() = turn.stop();
  *request.mutable_output() = turn.output();
  request.mutable_stop()->set_max_tokens(0);
  request.mutable_prompt()->set_text(" ");
  grpc::ClientContext context;
  connection.Authorize(context);
  context.set_deadline(std::chrono::system_clock::now() + kCheckTime);
  const auto stub = v1::InferenceService::NewStub(connection.channel);
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse ignored;
  while (reader->Read(&ignored)) {
  }
  const grpc::Status status = reader->Finish();
  return status.error_code() == grpc::INVALID_ARGUMENT ? status.error_message() : "";
}

// The functions below are commands: each prints its result or error to stderr.

using Stub = v1::SessionService::Stub;

// State of one SessionService call; `id` is the session's, or "".
struct SessionCall {
  SessionCall(const Connection& connection, const std::string& id)
      : stub(v1::SessionService::NewStub(connection.channel)) {
    connection.Authorize(context, SessionKeyFromId(id));
  }

  const std::unique_ptr<Stub> stub;
  grpc::ClientContext context;
};

// Opens a file; returns null after printing the error.
std::FILE* OpenFile(const std::string& path, const char* mode) {
  std::FILE* file = std::fopen(path.c_str(), mode);
  if (file == nullptr) Complain(absl::StrCat(path, ": ", std::strerror(errno)));
  return file;
}

// Calls a method for a session; prints the error if the call fails.
template <class Request, class Response>
bool CallFor(const Connection& connection, const std::string& id,
             grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
             Response& response, Request request = {}) {
  SessionCall call(connection, id);
  request.set_session_id(id);
  const grpc::Status status = (call.stub.get()->*method)(&call.context, request, &response);
  if (!status.ok()) Complain(connection, status, call.context);
  return status.ok();
}

void Tell(const std::string& line) { std::fputs(absl::StrCat(line, "\n").c_str(), stderr); }

void ShowSession(const Connection& connection, const std::string& id) {
  v1::Session session;
  if (!CallFor(connection, id, &Stub::GetSession, session)) return;
  Tell(absl::StrCat("[session ", id, " | position ", session.position(), " | prompt ",
                    session.prompt_tokens_total(), " tokens | generated ",
                    session.generated_tokens_total(), " tokens | state ",
                    HumanBytes(session.state_bytes()), " of at most ",
                    HumanBytes(session.state_bytes_cap()), " | centroids ",
                    session.live_centroids(), " of at most ", session.max_centroids(), "]"));
}

// Copies the session and prints the copy's id.
void ForkSession(const Connection& connection, const std::string& id) {
  v1::ForkSessionResponse forked;
  if (!CallFor(connection, id, &Stub::ForkSession, forked)) return;
  for (const v1::Session& session : forked.sessions()) {
    Tell(absl::StrCat("session ", session.session_id()));
  }
}

// Returns true if the session is back at the position.
bool RewindSession(const Connection& connection, const std::string& id, uint64_t position) {
  v1::RewindSessionRequest request;
  request.set_position(position);
  v1::RewindSessionResponse rewound;
  if (!CallFor(connection, id, &Stub::RewindSession, rewound, request)) return false;
  Tell(absl::StrCat("[back at position ", position, "]"));
  return true;
}

// Writes the session's bytes to the file, which it closes. Returns how many there are; nullopt
// after printing the error.
std::optional<size_t> ExportSession(const Connection& connection, const std::string& id,
                                    std::FILE* file, const std::string& path) {
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
  if (written && status.ok()) return bytes;
  if (written) {
    Complain(connection, status, call.context);
  } else {
    Complain(absl::StrCat(path, ": cannot be written"));
  }
  return std::nullopt;
}

// Creates a session from a file and prints its id.
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
  const int error = std::ferror(file) != 0 ? errno : 0;
  std::fclose(file);
  if (error != 0) call.context.TryCancel();
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (error != 0) {
    Complain(absl::StrCat(path, ": ", std::strerror(error)));
    return;
  }
  if (!status.ok()) {
    Complain(connection, status, call.context);
    return;
  }
  Tell(absl::StrCat("session ", session.session_id()));
}

}  // namespace

struct Dialogue::Command {
  const char* name;
  const char* arguments;
  const char* help;
  void (*run)(Dialogue& dialogue, const std::string& rest);
};

const Dialogue::Command Dialogue::kCommands[] = {
    {"/help", "", "this list", [](Dialogue& d, const std::string&) { d.Help(); }},
    {"/set", "[NAME VALUE]", "how answers are made, or change it; VALUE default takes it back",
     [](Dialogue& d, const std::string& rest) { d.Settings(rest); }},
    {"/stats", "", "the session: position, tokens, memory",
     [](Dialogue& d, const std::string&) { ShowSession(d.connection_, d.session_id()); }},
    {"/model", "", "the model and its server", [](Dialogue& d, const std::string&) { d.Model(); }},
    {"/undo", "", "take the last question and its answer back",
     [](Dialogue& d, const std::string&) { d.Undo(); }},
    {"/reset", "", "begin again with a new session",
     [](Dialogue& d, const std::string&) { d.Reset(); }},
    {"/fork", "", "copy the session and print the copy's id, for --session",
     [](Dialogue& d, const std::string&) { ForkSession(d.connection_, d.session_id()); }},
    {"/save", "FILE", "write the session to a new file",
     [](Dialogue& d, const std::string& file) { d.Save(file); }},
    {"/load", "FILE", "make a session of such a file and print its id, for --session",
     [](Dialogue& d, const std::string& file) { LoadSession(d.connection_, file); }},
    {"/quit", "", "end the conversation; so does Ctrl-D",
     [](Dialogue& d, const std::string&) { d.over_ = true; }},
};

Dialogue::Dialogue(const Connection& connection, ChatOptions& options, const Screen& screen,
                   Input& input)
    : connection_(connection), options_(options), screen_(screen), input_(input) {}

int Dialogue::Run(const std::optional<std::string>& question) {
  typed_ = !question && screen_.terminal;
  if ((typed_ && !Greet()) || !Begin()) return kExitError;
  if (typed_) {
    const v1::Session& session = conversation_->session();
    screen_.Show(screen_.Dim(absl::StrCat(
        "session ", session.session_id(), "\n",
        options_.messages ? "Your turns are messages" : "The model goes on from your text",
        "; its state never takes more than ", HumanBytes(session.state_bytes_cap()),
        ".\n/help lists the commands, Ctrl-C stops an answer, Ctrl-D ends.\n\n")));
  }
  if (question) {
    whole_ = conversation_->Ask(*question);
  } else {
    ReadTurns();
  }
  if (!open_ || !End()) return kExitError;
  if (!whole_) return Complain("the server ended the conversation");
  const bool interrupted = question ? conversation_->interrupted() : input_.interrupted();
  return interrupted ? kExitInterrupted : 0;
}

bool Dialogue::AskForModel() {
  grpc::ClientContext context;
  connection_.Authorize(context);
  v1::GetModelInfoRequest request;
  request.set_memory(options_.open.memory());
  const auto stub = v1::InferenceService::NewStub(connection_.channel);
  const grpc::Status status = stub->GetModelInfo(&context, request, &model_);
  if (!status.ok()) {
    Complain(connection_, status, context);
  }
  return status.ok();
}

void Dialogue::ChooseMessages() {
  if (model_.has_chat_template() && !options_.as_text && !options_.open.has_session_id()) {
    options_.messages = true;
  }
}

bool Dialogue::Greet() {
  if (!AskForModel()) return false;
  ChooseMessages();
  screen_.Show(absl::StrCat(screen_.Bold(model_.name()), " (", Millions(model_.parameters()), ", ",
                            model_.compute_dtype(), " on ", model_.device(), ") at ",
                            connection_.options.server, "\n"));
  return true;
}

bool Dialogue::Begin() {
  auto conversation = std::make_unique<Conversation>(connection_, options_, screen_);
  {
    const std::lock_guard lock(mutex_);
    conversation_ = std::move(conversation);
  }
  open_ = conversation_->Open();
  if (!open_) {
    if (End()) Complain("the server ended the conversation");
    return false;
  }
  if (options_.open.keep_session()) {
    screen_.Show(absl::StrCat("session ", conversation_->session().session_id(), "\n"));
  }
  return true;
}

bool Dialogue::End() {
  const bool was_open = std::exchange(open_, false);
  const grpc::Status status = conversation_->Close();
  // All answers have arrived, so a server that drains or has gone away is not an error.
  const bool gone = was_open && whole_ && status.error_code() == grpc::UNAVAILABLE;
  if (status.ok() || gone) return true;
  Complain(connection_, status, conversation_->context());
  return false;
}

void Dialogue::ReadTurns() {
  while (!over_ && whole_) {
    const std::optional<std::string> line = input_.Next(options_.messages ? "you> " : "> ");
    asked_ = false;
    if (!line) return;
    if (line->starts_with("//")) {
      Question(std::string_view(*line).substr(1));
    } else if (line->starts_with('/')) {
      Do(*line);
    } else if (!line->empty()) {
      Question(*line);
    }
  }
}

void Dialogue::Question(std::string_view text) {
  if (const std::optional<size_t> invalid = FirstInvalidUtf8(text)) {
    Complain(absl::StrCat("the question is not valid UTF-8 at byte ", *invalid));
    return;
  }
  asked_ = true;
  whole_ = conversation_->Ask(text);
}

void Dialogue::Do(std::string_view line) {
  const size_t space = line.find_first_of(" \t\n");
  const std::string_view name = line.substr(0, space);
  std::string rest(space == std::string_view::npos ? "" : line.substr(space + 1));
  for (const Command& command : kCommands) {
    if (name != command.name) continue;
    absl::StripAsciiWhitespace(&rest);
    const bool wanted = command.arguments[0] != '\0';
    if (rest.empty() == wanted && command.arguments[0] != '[') {
      Complain(wanted ? absl::StrCat(command.name, " needs ", command.arguments)
                      : absl::StrCat(command.name, " takes nothing else"));
      return;
    }
    command.run(*this, rest);
    return;
  }
  Complain(absl::StrCat("no command ", std::string(name),
                        "; /help lists them, a question that begins with / is written with //"));
}

void Dialogue::Help() {
  std::string text;
  for (const Command& command : kCommands) {
    absl::StrAppendFormat(&text, "  %-6s %-13s %s\n", command.name, command.arguments,
                          command.help);
  }
  absl::StrAppend(&text,
                  "Alt-Enter begins a new line, a pasted block is one turn; a question that begins "
                  "with /\nis written with //.\n");
  screen_.Show(text);
}

void Dialogue::Model() {
  if (model_.name().empty() && !AskForModel()) return;
  screen_.Show(absl::StrCat(
      "[model ", model_.name(), " | ", Millions(model_.parameters()), ", vocabulary ",
      model_.vocab_size(), " | ", model_.compute_dtype(), " on ", model_.device(), " | memory ",
      model_.memory(), ", offered: ", absl::StrJoin(model_.memories(), ", "), " | centroids ",
      model_.default_max_centroids(), ", at most ", model_.max_centroids_limit(),
      " | chat template: ", model_.has_chat_template() ? "yes" : "no", " | ovq-server ",
      model_.server_version(), " at ", connection_.options.server, "]\n"));
}

void Dialogue::Settings(const std::string& rest) {
  if (rest.empty()) {
    screen_.Show(SettingsText(options_.turn));
    return;
  }
  const size_t space = rest.find(' ');
  if (space == std::string::npos) {
    Complain("/set needs a name and a value");
    return;
  }
  v1::ChatTurn changed = options_.turn;
  const absl::Status status =
      ChangeSetting(changed, rest.substr(0, space),
                    std::string(absl::StripLeadingAsciiWhitespace(rest.substr(space))));
  const std::string fault =
      status.ok() ? Fault(connection_, changed) : std::string(status.message());
  if (!fault.empty()) {
    Complain(fault);
    return;
  }
  options_.turn = changed;
}

void Dialogue::Reset() {
  End();
  options_.open.clear_session_id();
  if (typed_) ChooseMessages();
  over_ = !Begin();
  whole_ = !over_;
  if (whole_) screen_.Show("[a new session]\n");
}

void Dialogue::Undo() {
  const std::optional<uint64_t> position = conversation_->PositionBeforeLastQuestion();
  if (!position) {
    Complain("nothing was asked here that could be taken back");
  } else if (RewindSession(connection_, session_id(), *position)) {
    conversation_->DropLastQuestion();
  }
}

void Dialogue::Save(const std::string& path) {
  std::FILE* file = nullptr;
  int error = 0;
  {
    const std::lock_guard lock(mutex_);
    file = std::fopen(path.c_str(), "wbx");
    error = errno;
    if (file != nullptr) unfinished_file_ = path;
  }
  if (file == nullptr) return (void)Complain(absl::StrCat(path, ": ", std::strerror(error)));
  const std::optional<size_t> bytes = ExportSession(connection_, session_id(), file, path);
  {
    const std::lock_guard lock(mutex_);
    if (!bytes) std::remove(path.c_str());
    unfinished_file_.clear();
  }
  if (bytes) Tell(absl::StrCat("[", *bytes, " bytes in ", path, "]"));
}

void Dialogue::Abandon() {
  mutex_.lock();
  if (!unfinished_file_.empty()) std::remove(unfinished_file_.c_str());
}

bool Dialogue::OnInterrupt() {
  const std::lock_guard lock(mutex_);
  if (conversation_ == nullptr) return false;
  if (conversation_->OnInterrupt()) return true;
  return asked_ && !conversation_->answering() && !input_.reading();
}

}  // namespace ovq::clients
