// ovq-admin: shows and ends the sessions and calls of all tenants on one or more servers, for their
// operators (ovq.v1.AdminService).
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/flags.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "clients/channel/channel.h"
#include "clients/common/program.h"
#include "ovq/v1/admin.grpc.pb.h"

namespace ovq::clients {
namespace {

constexpr char kAdmin[] = "ovq-admin";
constexpr char kServers[] = "HOST:PORT[,HOST:PORT...] with ports from 1 to 65535";

struct AdminOptions {
  std::vector<std::string> servers = {"127.0.0.1:50052"};
  ConnectOptions connect;  // all options but the server's address
  absl::Duration timeout = absl::Seconds(10);
  bool json = false;
  std::string command, session_id;
};

std::optional<std::vector<std::string>> ParseServers(std::string_view text) {
  const std::vector<std::string> servers = absl::StrSplit(AbslView(text), ',');
  std::string ignored;
  const auto bad = [&](const std::string& server) { return !Address(ignored, 1).set(server).ok(); };
  return std::ranges::any_of(servers, bad) ? std::nullopt : std::optional(servers);
}

std::string HelpText();

Flags Declare(AdminOptions& o) {
  const std::vector<std::pair<std::string, std::string>> commands = {
      {"status", "status"}, {"sessions", "sessions"}, {"drain", "drain"}, {"delete", "delete"}};
  Flags flags;
  flags.AddArgument("COMMAND", Choice(o.command, commands),
                    "status: load, memory and tenants of each server\n"
                    "sessions: the sessions of each server, of all tenants\n"
                    "drain: like SIGTERM to each server\n"
                    "delete ID: end a session; a call that uses it is cancelled");
  flags.AddArgument("ID", Text(o.session_id, "an id"), "of delete");
  flags.Add(
      "server", "HOST:PORT,...",
      ReadInto(o.servers, kServers, ParseServers, [](const auto& held) { return held.front(); }),
      "the --admin-listen of each server that is asked: a balancer would pass the call on to\n"
      "one of them; the environment's OVQ_ADMIN_SERVER changes the default");
  AddCredentials(flags, o.connect);
  flags.Add("timeout", "DURATION", Duration(o.timeout, absl::Milliseconds(1), absl::Hours(1)),
            "of each call");
  flags.AddSwitch("json", o.json, "status, sessions: a line of JSON for each answer");
  AddHelpAndVersion(flags, kAdmin, HelpText);
  return flags;
}

std::string HelpText() {
  AdminOptions options;
  return absl::StrCat(
      "Usage: ovq-admin COMMAND [flags]\n"
      "What runs on servers, for those who run them. With --tenants every call needs the token of\n"
      "a tenant with \"admin\": true.\n"
      "Exit status: 0 fine, 1 error, 2 bad usage.\n\n",
      Declare(options).Help());
}

absl::StatusOr<AdminOptions> ParseOptions(const std::vector<std::string>& args) {
  AdminOptions options;
  Flags flags = Declare(options);
  if (const char* const servers = std::getenv("OVQ_ADMIN_SERVER");
      servers != nullptr && *servers != '\0') {
    const auto parsed = ParseServers(servers);
    if (!parsed) {
      return absl::InvalidArgumentError(
          absl::StrCat("OVQ_ADMIN_SERVER: expected ", kServers, ", got '", servers, "'"));
    }
    options.servers = *parsed;
  }
  RETURN_IF_ERROR(flags.Read(args));
  if (options.command.empty()) {
    return absl::InvalidArgumentError("expected a command: status, sessions, drain or delete");
  }
  if (options.json && options.command != "status" && options.command != "sessions") {
    return absl::InvalidArgumentError("--json: expected status or sessions with it");
  }
  if ((options.command == "delete") == options.session_id.empty()) {
    return absl::InvalidArgumentError(options.session_id.empty()
                                          ? "delete: expected a session's id, got none"
                                          : absl::StrCat(options.command, " takes no id"));
  }
  RETURN_IF_ERROR(CheckCredentials(options.connect));
  return options;
}

std::string Mebibytes(uint64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

void PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions print;
  print.preserve_proto_field_names = true;
  print.always_print_primitive_fields = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, print).ok()) return;
  std::printf("%s\n", text.c_str());
}

// "5 of 10", or "5" without a limit.
template <class T>
std::string OfLimit(const T& used, bool limited, const T& limit) {
  return limited ? absl::StrCat(used, " of ", limit) : absl::StrCat(used);
}

void PrintStatus(const v1::ServerStatus& status) {
  absl::PrintF("  ovq-server %s, model %s, up %s%s\n", status.version(), status.model(),
               absl::FormatDuration(absl::Seconds(status.uptime().seconds())),
               status.draining() ? ", DRAINING" : "");
  absl::PrintF("  requests: %d running, %d waiting with %d prompt tokens\n",
               status.requests_running(), status.requests_waiting(),
               status.waiting_prompt_tokens());
  absl::PrintF("  sessions: %d active, %d idle, at most %d\n", status.sessions_active(),
               status.sessions_idle(), status.max_sessions());
  absl::PrintF("  states:   %s in memory, %s reserved of %s\n",
               Mebibytes(status.state_bytes_committed()), Mebibytes(status.state_bytes_reserved()),
               Mebibytes(status.state_bytes_budget()));
  for (const v1::TenantStatus& tenant : status.tenants()) {
    absl::PrintF("  tenant %s: sessions %s, states %s", tenant.name(),
                 OfLimit(tenant.sessions(), tenant.has_sessions_limit(), tenant.sessions_limit()),
                 OfLimit(Mebibytes(tenant.state_bytes()), tenant.has_state_bytes_limit(),
                         Mebibytes(tenant.state_bytes_limit())));
    if (tenant.has_requests_left()) absl::PrintF(", requests left %.0f", tenant.requests_left());
    if (tenant.has_tokens_left()) absl::PrintF(", tokens left %.0f", tenant.tokens_left());
    absl::PrintF("\n");
  }
}

void PrintSession(const v1::TenantSession& entry) {
  const v1::Session& session = entry.session();
  absl::PrintF("  %s tenant '%s' position %d state %s of %s %s%s\n", session.session_id(),
               entry.tenant(), session.position(), Mebibytes(session.state_bytes()),
               Mebibytes(session.state_bytes_cap()), session.busy() ? "busy" : "idle",
               session.hibernated() ? " on disk" : "");
}

// Runs the command on the server at connection.options.server and returns the call's status.
grpc::Status Do(const AdminOptions& options, const Connection& connection) {
  using Stub = v1::AdminService::Stub;
  const auto stub = v1::AdminService::NewStub(connection.channel);
  const char* const address = connection.options.server.c_str();
  const auto call = [&](auto method, const auto& request, auto& response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         absl::ToChronoMicroseconds(options.timeout));
    connection.Authorize(context);
    return (stub.get()->*method)(&context, request, &response);
  };
  grpc::Status status;
  if (options.command == "status") {
    v1::ServerStatus response;
    status = call(&Stub::GetStatus, v1::GetStatusRequest(), response);
    if (!status.ok()) return status;
    if (options.json) {
      PrintJson(response);
    } else {
      absl::PrintF("%s\n", address);
      PrintStatus(response);
    }
  } else if (options.command == "drain") {
    v1::DrainResponse response;
    status = call(&Stub::Drain, v1::DrainRequest(), response);
    if (status.ok()) absl::PrintF("%s drains\n", address);
  } else if (options.command == "delete") {
    v1::AdminDeleteSessionRequest request;
    request.set_session_id(options.session_id);
    v1::AdminDeleteSessionResponse response;
    status = call(&Stub::DeleteSession, request, response);
    if (status.ok()) absl::PrintF("%s had it\n", address);
  } else {
    if (!options.json) absl::PrintF("%s\n", address);
    v1::AdminListSessionsRequest request;
    v1::AdminListSessionsResponse page;
    int count = 0;
    do {
      status = call(&Stub::ListSessions, request, page);
      if (!status.ok()) return status;
      for (const v1::TenantSession& entry : page.sessions()) {
        options.json ? PrintJson(entry) : PrintSession(entry);
      }
      count += page.sessions_size();
      request.set_page_token(page.next_page_token());
    } while (!page.next_page_token().empty());
    if (!options.json) {
      absl::PrintF("  %d session%s of this server\n", count, count == 1 ? "" : "s");
    }
  }
  return status;
}

// Sends the command to every server, even after one of them fails; returns the exit status.
int Run(const AdminOptions& options) {
  const absl::StatusOr<Credentials> credentials = ReadCredentials(options.connect);
  if (!credentials.ok()) return Fail(kAdmin, kExitUsage, credentials.status().message());
  int failed = 0, missing = 0;
  for (const std::string& address : options.servers) {
    ConnectOptions connect = options.connect;
    connect.server = address;
    const grpc::Status status = Do(options, ConnectWith(*credentials, connect));
    if (status.ok()) continue;
    // A session lies on one server only, so the others may answer NOT_FOUND.
    if (options.command == "delete" && status.error_code() == grpc::NOT_FOUND &&
        ++missing < static_cast<int>(options.servers.size())) {
      continue;
    }
    ++failed;
    Fail(kAdmin, kExitError, absl::StrCat(address, ": ", Explained(status, connect).ToString()));
  }
  return failed > 0 ? kExitError : 0;
}

int Main(const std::vector<std::string>& args) {
  const absl::StatusOr<AdminOptions> options = ParseOptions(args);
  if (!options.ok()) return Fail(kAdmin, kExitUsage, options.status().message());
  return EndOutput(kAdmin, Run(*options));
}

}  // namespace
}  // namespace ovq::clients

int main(int argc, char** argv) {
  return ovq::clients::Main(std::vector<std::string>(argv + 1, argv + argc));
}
