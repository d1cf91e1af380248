#include "hub/database.h"

#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include "dgc/error.h"

namespace dgc::hub {
namespace {

[[noreturn]] void fail(sqlite3* database) {
  const char* const file = sqlite3_db_filename(database, "main");
  throw Error(ErrorCode::io, "hub", file == nullptr ? "database" : file, sqlite3_errmsg(database),
              "is the disk full, or the file in use by another hub?");
}

}  // namespace

Statement::Statement(sqlite3* database, std::string_view sql) : database_(database) {
  if (sqlite3_prepare_v2(database, sql.data(), static_cast<int>(sql.size()), &statement_,
                         nullptr) != SQLITE_OK) {
    fail(database);
  }
}

Statement::~Statement() { sqlite3_finalize(statement_); }

Statement& Statement::bind(std::int64_t value) {
  if (sqlite3_bind_int64(statement_, ++bound_, value) != SQLITE_OK) fail(database_);
  return *this;
}
Statement& Statement::bind(double value) {
  if (sqlite3_bind_double(statement_, ++bound_, value) != SQLITE_OK) fail(database_);
  return *this;
}
Statement& Statement::bind(std::string_view value) {
  if (sqlite3_bind_text64(statement_, ++bound_, value.data(), value.size(), SQLITE_TRANSIENT,
                          SQLITE_UTF8) != SQLITE_OK) {
    fail(database_);
  }
  return *this;
}
Statement& Statement::bind(std::span<const std::byte> value) {
  // Without an address it would be NULL.
  static constexpr std::byte kNothing{};
  const void* const data = value.empty() ? &kNothing : value.data();
  if (sqlite3_bind_blob64(statement_, ++bound_, data, value.size(), SQLITE_STATIC) != SQLITE_OK) {
    fail(database_);
  }
  return *this;
}
Statement& Statement::bind_null() {
  if (sqlite3_bind_null(statement_, ++bound_) != SQLITE_OK) fail(database_);
  return *this;
}

bool Statement::step() {
  const int result = sqlite3_step(statement_);
  if (result != SQLITE_ROW && result != SQLITE_DONE) fail(database_);
  return result == SQLITE_ROW;
}

std::int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(statement_, column);
}
double Statement::real(int column) const { return sqlite3_column_double(statement_, column); }
bool Statement::is_null(int column) const {
  return sqlite3_column_type(statement_, column) == SQLITE_NULL;
}
std::string Statement::text(int column) const {
  const auto bytes = blob(column);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::vector<std::byte> Statement::blob(int column) const {
  const auto* const data = static_cast<const std::byte*>(sqlite3_column_blob(statement_, column));
  const int size = sqlite3_column_bytes(statement_, column);
  if (data == nullptr) return {};
  return {data, data + size};
}

Database::Database(const std::filesystem::path& file, bool create) {
  const int flags = SQLITE_OPEN_READWRITE | (create ? SQLITE_OPEN_CREATE : 0);
  // It has hashes of tokens: nobody else needs to read it.
  const ::mode_t before = ::umask(0077);
  const int opened = sqlite3_open_v2(file.c_str(), &handle_, flags, nullptr);
  ::umask(before);
  try {
    if (opened != SQLITE_OK) {
      throw Error(ErrorCode::io, "hub", file.string(),
                  create ? "cannot be written" : "there is no hub's run in this folder",
                  create ? "" : "name the folder that was --out of dgc serve");
    }
    sqlite3_busy_timeout(handle_, 5000);
    execute("PRAGMA journal_mode=WAL");
    execute("PRAGMA synchronous=FULL");
    execute("PRAGMA foreign_keys=ON");
  } catch (...) {
    sqlite3_close(handle_);
    throw;
  }
}

Database::~Database() { sqlite3_close(handle_); }

void Database::execute(const char* sql) {
  if (sqlite3_exec(handle_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) fail(handle_);
}

Transaction::~Transaction() {
  if (done_) return;
  try {
    database_.execute("ROLLBACK");
  } catch (const Error&) {  // the error that brought us here says why
  }
}

void Transaction::commit() {
  database_.execute("COMMIT");
  done_ = true;
}

}  // namespace dgc::hub
