/* g++ as a function, with a store of what it made: several ranks that need a kernel at the same time compile it once. */
#include "compiler.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

using std::string;
using std::vector;

namespace {

const vector<string> always = {STANDIN_KERNEL_FLAGS};   // by the build, which compiles headers ahead with the same

bool read_file(const string &path, string &content)
{
    FILE *file = fopen(path.c_str(), "rb");
    if (!file)
        return false;
    char part[65536];
    content.clear();
    for (size_t got; (got = fread(part, 1, sizeof part, file)) > 0;)
        content.append(part, got);
    fclose(file);
    return true;
}

bool write_file(const string &path, const string &content)
{
    FILE *file = fopen(path.c_str(), "wb");
    if (!file)
        return false;
    bool whole = fwrite(content.data(), 1, content.size(), file) == content.size();
    return !fclose(file) && whole;
}

void make_folders(const string &path)
{
    for (size_t at = path.find('/', 1); at != string::npos; at = path.find('/', at + 1))
        mkdir(path.substr(0, at).c_str(), 0777);
}

/* A folder of its own for each compilation, removed with what is in it. */
class Workplace {
public:
    Workplace()
    {
        const char *parent = getenv("TMPDIR");
        string form = string(parent && *parent ? parent : "/tmp") + "/standin-kernel-XXXXXX";
        path = mkdtemp(&form[0]) ? form : "";
    }
    ~Workplace()
    {
        if (!path.empty())
            nftw(path.c_str(), remove_one, 8, FTW_DEPTH | FTW_PHYS);
    }
    /* Runs a program to its end, what it says goes to a file. */
    static bool run(const vector<string> &command, const string &said)
    {
        vector<char *> words;
        for (const string &word : command)
            words.push_back((char *)word.c_str());
        words.push_back(nullptr);
        posix_spawn_file_actions_t files;
        posix_spawn_file_actions_init(&files);
        posix_spawn_file_actions_addopen(&files, 1, said.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
        posix_spawn_file_actions_adddup2(&files, 1, 2);
        pid_t child;
        int status = posix_spawnp(&child, words[0], &files, nullptr, words.data(), environ);
        posix_spawn_file_actions_destroy(&files);
        if (status)
            return false;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
        return WIFEXITED(status) && !WEXITSTATUS(status);
    }
    string path;

private:
    static int remove_one(const char *path, const struct stat *, int, struct FTW *)
    {
        return remove(path);
    }
};

bool compile_now(const string &text, const std::map<string, string> &headers, const vector<string> &flags, string &object,
                 string &log)
{
    Workplace place;
    string source = place.path + "/kernel.cpp", made = place.path + "/kernel.so", said = place.path + "/said";
    log = "no temporary folder can be written";
    if (place.path.empty() || !write_file(source, text))
        return false;
    for (const auto &header : headers) {
        make_folders(place.path + "/" + header.first);
        if (!write_file(place.path + "/" + header.first, header.second))
            return false;
    }
    vector<string> command = {"g++", "-shared", "-Wl,-Bsymbolic"};
    command.insert(command.end(), always.begin(), always.end());
    command.insert(command.end(), flags.begin(), flags.end());
    command.insert(command.end(), {"-I" + place.path, source, "-o", made});
    bool good = Workplace::run(command, said);
    log = "";
    read_file(said, log);
    if (!good && log.empty())
        log = "g++ could not be run";
    return good && read_file(made, object);
}

/* FNV-1a, twice with different starts. */
string hash(const string &text)
{
    unsigned long long first = 14695981039346656037u, second = 1099511628211u * 31;
    for (unsigned char letter : text) {
        first = (first ^ letter) * 1099511628211u;
        second = (second ^ (letter + 57u)) * 1099511628211u;
    }
    char name[33];
    snprintf(name, sizeof name, "%016llx%016llx", first, second);
    return name;
}

/* Held while a kernel is looked for and compiled. */
class Lock {
public:
    explicit Lock(const string &path) : file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666))
    {
        while (file >= 0 && flock(file, LOCK_EX) && errno == EINTR)
            ;
    }
    ~Lock()
    {
        if (file >= 0)
            close(file);
    }

private:
    int file;
};

void keep(const string &path, const string &object)
{
    string part = path + "." + std::to_string(getpid());
    if (!write_file(part, object) || rename(part.c_str(), path.c_str()))
        unlink(part.c_str());
}

}  // namespace

string stand_in_folder()
{
    Dl_info here;
    if (!dladdr((const void *)stand_in_folder, &here))
        return ".";
    string path = here.dli_fname;
    return path.substr(0, path.rfind('/'));
}

bool compile_object(const string &text, const std::map<string, string> &headers, const vector<string> &flags,
                    string &object, string &log)
{
    string all = text;
    for (const string &flag : flags)
        all += '\0' + flag;
    for (const auto &header : headers)
        all += '\0' + header.first + '\0' + header.second;
    string folder = stand_in_folder() + "/kernels/";
    make_folders(folder);
    string path = folder + hash(all) + ".so";
    log = "";
    Lock lock(path + ".lock");
    if (read_file(path, object))
        return true;
    if (!compile_now(text, headers, flags, object, log))
        return false;
    keep(path, object);
    return true;
}
