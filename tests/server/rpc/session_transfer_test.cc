// ExportSession and ImportSession: sessions as files.
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/server/server_test_util.h"

namespace ovq::server::test {
namespace {

using testing::HasSubstr;

using Sessions = v1::SessionService::Stub;

// base: the base of the first part, the only one that has it.
std::pair<std::string, grpc::Status> Export(TestServer& server, const std::string& id,
                                            const std::string& tenant,
                                            const std::optional<v1::SessionBase>& since = {},
                                            v1::SessionBase* base = nullptr) {
  grpc::ClientContext context;
  context.AddMetadata("ovq-tenant", tenant);
  v1::ExportSessionRequest request;
  request.set_session_id(id);
  if (since) *request.mutable_since() = *since;
  const auto reader = server.sessions().ExportSession(&context, request);
  std::string file;
  v1::SessionBytes part;
  while (reader->Read(&part)) {
    EXPECT_LE(part.data().size(), size_t{1} << 20);
    if (file.empty() && base != nullptr) *base = part.base();
    EXPECT_TRUE(file.empty() || !part.has_base());
    file += part.data();
  }
  return {file, reader->Finish()};
}

grpc::Status ImportFile(TestServer& server, const std::string& file, v1::Session& session,
                        const std::string& tenant, size_t part_bytes = 10'000) {
  grpc::ClientContext context;
  context.AddMetadata("ovq-tenant", tenant);
  context.AddMetadata("ovq-session", "green");
  const auto writer = server.sessions().ImportSession(&context, &session);
  v1::SessionBytes part;
  part.mutable_ttl()->set_seconds(77);
  for (size_t at = 0; at < file.size(); at += part_bytes) {
    part.set_data(file.substr(at, part_bytes));
    if (!writer->Write(part)) break;
    part.clear_ttl();
  }
  writer->WritesDone();
  return writer->Finish();
}

std::shared_ptr<const engine::FleetKeys> Keys(char digit) {
  return std::make_shared<const engine::FleetKeys>(
      *engine::FleetKeys::Parse(std::string(64, digit)));
}

TEST(SessionCalls, StatesOfTheFleetAreTaken) {
  TestServerOptions fleet, elsewhere;
  fleet.engine.fleet_keys = Keys('1');
  elsewhere.engine.fleet_keys = Keys('2');
  TestServer from(fleet), to(fleet), other(elsewhere), keyless;
  v1::CreateSessionRequest create;
  create.mutable_prompt()->set_text("once upon a time there was a session");
  create.set_keep_tokens(false);
  v1::Session made, copy;
  ASSERT_THAT(Call(from.sessions(), &Sessions::CreateSession, create, made, "bob"), Succeeds());
  const std::string file = Export(from, made.session_id(), "bob").first;
  ASSERT_THAT(ImportFile(to, file, copy, "eve"), Succeeds());
  EXPECT_EQ(copy.position(), made.position());
  for (TestServer* stranger : {&other, &keyless}) {
    EXPECT_THAT(
        ImportFile(*stranger, file, copy, "eve"),
        Fails(grpc::StatusCode::FAILED_PRECONDITION, "no key of this server has signed its state"));
  }
  create.set_keep_tokens(true);
  ASSERT_THAT(Call(from.sessions(), &Sessions::CreateSession, create, made, "bob"), Succeeds());
  const std::string with_tokens = Export(from, made.session_id(), "bob").first;
  for (TestServer* server : {&to, &other}) {
    ASSERT_THAT(ImportFile(*server, with_tokens, copy, "eve"), Succeeds());
  }
  const auto expect_imports = [](TestServer& server, const char* state, int count) {
    EXPECT_THAT(server.metrics().Text(),
                HasSubstr(absl::StrCat("ovq_session_imports_total{model=\"fake\",state=\"", state,
                                       "\"} ", count, "\n")));
  };
  expect_imports(to, "signed", 2);
  expect_imports(to, "replayed", 0);
  expect_imports(other, "signed", 0);
  expect_imports(other, "replayed", 1);
  expect_imports(other, "trusted", 0);
}

TEST(SessionCalls, ExportAndImport) {
  TestServer server;
  v1::CreateSessionRequest create;
  create.mutable_prompt()->set_text("once upon a time there was a session");
  v1::Session made, copy;
  ASSERT_THAT(Call(server.sessions(), &Sessions::CreateSession, create, made, "bob"), Succeeds());
  const auto [file, status] = Export(server, made.session_id(), "bob");
  ASSERT_THAT(status, Succeeds());
  for (const size_t part_bytes : {size_t{1}, size_t{77}, file.size()}) {
    if (part_bytes == 1 && file.size() > 100'000) continue;
    ASSERT_THAT(ImportFile(server, file, copy, "eve", part_bytes), Succeeds());
    EXPECT_EQ(copy.session_id().substr(0, 6), "green.");
    EXPECT_EQ(copy.position(), made.position());
    EXPECT_EQ(copy.expires().seconds() - copy.last_used().seconds(), 77);
  }
  EXPECT_THAT(server.metrics().Text(),
              HasSubstr("ovq_session_events_total{model=\"fake\",event=\"export\"} 1\n"));

  constexpr auto kDataLoss = grpc::StatusCode::DATA_LOSS;
  EXPECT_THAT(ImportFile(server, "", copy, "eve"), Fails(kDataLoss, "session file: "));
  EXPECT_THAT(ImportFile(server, file.substr(0, file.size() - 1), copy, "eve"),
              Fails(kDataLoss, "session file: "));
  EXPECT_THAT(ImportFile(server, file + "x", copy, "eve"), Fails(kDataLoss, "behind its end"));
  for (const size_t at : {size_t{3}, size_t{40}, file.size() / 2, file.size() - 5}) {
    std::string damaged = file;
    damaged[at] = static_cast<char>(damaged[at] ^ 16);
    EXPECT_THAT(ImportFile(server, damaged, copy, "eve"), Fails(kDataLoss, "session file: ")) << at;
  }
  std::string newer = file;
  newer[8] = 2;
  EXPECT_THAT(ImportFile(server, newer, copy, "eve"),
              Fails(grpc::StatusCode::FAILED_PRECONDITION, "version"));
  EXPECT_THAT(Export(server, made.session_id(), "eve").second,
              Fails(grpc::StatusCode::NOT_FOUND, "not found"));
  EXPECT_THAT(Export(server, "", "bob").second, Fails(kInvalid, "session_id: "));

  // An import that stops between its parts leaves nothing behind.
  {
    grpc::ClientContext context;
    const auto writer = server.sessions().ImportSession(&context, &copy);
    v1::SessionBytes part;
    part.set_data(file.substr(0, file.size() / 2));
    EXPECT_TRUE(writer->Write(part));
    context.TryCancel();
    EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_EQ(server.engine().sessions().List(std::nullopt, 0, "")->sessions.size(), 4u);
}

TEST(SessionCalls, ACancelledImportStopsReadingItsTokens) {
  TestServer server;
  v1::CreateSessionRequest create;
  create.mutable_prompt()->set_text(std::string(30'000, 'x'));
  v1::Session made, copy;
  ASSERT_THAT(Call(server.sessions(), &Sessions::CreateSession, create, made, "bob"), Succeeds());
  v1::SessionBytes part;
  part.set_data(Export(server, made.session_id(), "bob").first);
  const int64_t next = server.model().gate().steps() + 1;
  server.model().gate().CloseAt(next);
  grpc::ClientContext context;
  const auto writer = server.sessions().ImportSession(&context, &copy);
  ASSERT_TRUE(writer->Write(part));
  writer->WritesDone();
  server.model().gate().AwaitEntered(next);
  context.TryCancel();
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  // The server hears of it at its own time: until then an iteration may go on now and then.
  for (int64_t step = next; step < next + 50 && server.engine().Stats().requests_running > 0;
       ++step) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    server.model().gate().CloseAt(step + 1);
  }
  server.model().gate().Open();
  server.WaitForStats([](const engine::EngineStats& s) {
    return s.requests_running == 0 && s.sessions_active + s.sessions_idle == 1;
  });
  EXPECT_LT(server.model().gate().steps(), next + 50);  // all of its tokens would take 59
}

TEST(SessionCalls, ASessionThatFillsTheMemoryCanBeExported) {
  TestServerOptions options;
  options.engine.state_memory_bytes =
      engine::test::FakeModel().layout().bytes_cap(engine::test::kDefaultSlotCap);
  TestServer server(std::move(options));
  v1::CreateSessionRequest create;
  create.mutable_prompt()->set_text(std::string(30'000, 'x'));
  v1::Session made;
  ASSERT_THAT(Call(server.sessions(), &Sessions::CreateSession, create, made, "bob"), Succeeds());
  for (int i = 0; i < 100; ++i) {  // at once: an export that has its answer holds nothing
    const auto [file, status] = Export(server, made.session_id(), "bob");
    ASSERT_THAT(status, Succeeds()) << i;
    EXPECT_GT(file.size(), server.engine().options().state_memory_bytes);
  }
}

TEST(SessionCalls, ExportSince) {
  TestServer server;
  constexpr auto kPrecondition = grpc::StatusCode::FAILED_PRECONDITION;
  v1::CreateSessionRequest create;
  create.mutable_prompt()->set_text("once upon a time there was a session");
  v1::Session made, copy;
  ASSERT_THAT(Call(server.sessions(), &Sessions::CreateSession, create, made, "bob"), Succeeds());
  const std::string& id = made.session_id();
  v1::SessionBase whole, later, again;
  ASSERT_THAT(Export(server, id, "bob", {}, &whole).second, Succeeds());
  EXPECT_EQ(whole.length(), made.position());
  v1::GenerateRequest turn;
  turn.set_session_id(id);
  turn.mutable_prompt()->set_text("and another");
  turn.mutable_stop()->set_max_tokens(0);
  grpc::ClientContext context;
  context.AddMetadata("ovq-tenant", "bob");
  ASSERT_THAT(Generate(server.inference(), turn, context).status, Succeeds());

  const auto [delta, status] = Export(server, id, "bob", whole, &later);
  ASSERT_THAT(status, Succeeds());
  EXPECT_EQ(delta.substr(12, 4), "DELT");
  EXPECT_EQ(later.length(), made.position() + 11);
  ASSERT_THAT(Export(server, id, "bob", later, &again).second, Succeeds());
  EXPECT_EQ(again.digest(), later.digest());
  (void)server.engine().sessions().Export("none",
                                          "");  // waits until the events before are reported
  EXPECT_THAT(server.metrics().Text(),
              HasSubstr("ovq_session_events_total{model=\"fake\",event=\"export_delta\"} 2\n"));
  EXPECT_THAT(ImportFile(server, delta, copy, "bob"),
              Fails(kPrecondition, "a delta, which has no state"));

  v1::SessionBase bad = later;
  bad.set_length(bad.length() + 1);
  EXPECT_THAT(Export(server, id, "bob", bad).second, Fails(kPrecondition, "has gone back"));
  bad.set_length(later.length() - 1);
  EXPECT_THAT(Export(server, id, "bob", bad).second, Fails(kPrecondition, "are not those"));
  bad.set_length(~uint64_t{0});
  EXPECT_THAT(Export(server, id, "bob", bad).second,
              Fails(kInvalid, "since.length: expected 0 to"));
  bad = later;
  bad.mutable_digest()->pop_back();
  EXPECT_THAT(Export(server, id, "bob", bad).second,
              Fails(kInvalid, "since.digest: expected 32 bytes, got 31"));
  EXPECT_THAT(Export(server, id, "eve", later).second,
              Fails(grpc::StatusCode::NOT_FOUND, "not found"));
  create.set_keep_tokens(false);
  ASSERT_THAT(Call(server.sessions(), &Sessions::CreateSession, create, made, "bob"), Succeeds());
  ASSERT_THAT(Export(server, id, "bob", {}, &again).second, Succeeds());
  EXPECT_EQ(again.ByteSizeLong(), 0u);
  EXPECT_THAT(Export(server, id, "bob", later).second, Fails(kPrecondition, "keeps no tokens"));
}

}  // namespace
}  // namespace ovq::server::test
