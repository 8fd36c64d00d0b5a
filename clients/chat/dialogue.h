// A conversation of several turns with somebody: questions, and commands that begin with a slash.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "clients/chat/conversation.h"
#include "clients/chat/options.h"
#include "clients/chat/sessions.h"
#include "clients/chat/terminal.h"

namespace ovq {

// All methods but OnInterrupt belong to one thread.
class Dialogue {
 public:
  // /set changes the options' turn.
  Dialogue(const Connection& connection, ChatOptions& options, const Screen& screen, Input& input);

  // Until it is over; the exit status. What went wrong has been told.
  int Run();

  // SIGINT: cancels the running answer; ends the dialogue if none runs.
  void OnInterrupt();

 private:
  struct Command;
  static const Command kCommands[];

  bool Greet();
  // A new conversation in place of the one that is there. False: told why.
  bool Begin();
  // Of the conversation that is there. False: told why.
  bool End();
  void ReadTurns();
  void Do(std::string_view line);
  void Question(std::string_view text);

  void Help(const std::string& rest);
  void Stats(const std::string& rest);
  void Model(const std::string& rest);
  void Settings(const std::string& rest);
  void Reset(const std::string& rest);
  void Undo(const std::string& rest);
  void Fork(const std::string& rest);
  void Save(const std::string& rest);
  void Load(const std::string& rest);
  void Quit(const std::string& rest);

  const Connection& connection_;
  ChatOptions& options_;
  const Screen& screen_;
  Input& input_;
  const Sessions sessions_;
  v1::ModelInfo model_;  // as Greet was told
  std::mutex mutex_;     // guards the pointer for OnInterrupt
  std::unique_ptr<Conversation> conversation_;
  bool open_ = false;     // the conversation has begun, and End was not called
  bool aborted_ = false;  // OnInterrupt ended its call
  bool over_ = false;     // no turn follows
  bool whole_ = true;     // no call has ended by itself
};

}  // namespace ovq
