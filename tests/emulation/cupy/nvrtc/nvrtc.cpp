/* libnvrtc.so.12: kernels compiled by g++ into a shared object of the host, which cuModuleLoadData loads (../../cuda).
 *
 * Every __global__ function that is no template becomes a row of the table `standin_kernels`; so does every name
 * expression, under its own text, which is also what it is "lowered" to.  What is asked for as PTX is but a comment
 * that says which compiler this is: CuPy makes it part of the keys of its cache.
 */
#include "../../cuda/kernel.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <string>
#include <vector>

#include "compiler.h"

using std::string;

namespace {

/* Of nvrtc.h, which is in a wheel that is not needed otherwise. */
enum Result { SUCCESS = 0, INVALID_INPUT = 3, INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6,
              NO_NAME_EXPRESSIONS_AFTER_COMPILATION = 8, NO_LOWERED_NAMES_BEFORE_COMPILATION = 9,
              NAME_EXPRESSION_NOT_VALID = 10 };
const char *const names[] = {"NVRTC_SUCCESS", "NVRTC_ERROR_OUT_OF_MEMORY", "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
                             "NVRTC_ERROR_INVALID_INPUT", "NVRTC_ERROR_INVALID_PROGRAM", "NVRTC_ERROR_INVALID_OPTION",
                             "NVRTC_ERROR_COMPILATION", "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
                             "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
                             "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
                             "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID", "NVRTC_ERROR_INTERNAL_ERROR"};

struct Program {
    string source, name, log, module;
    std::map<string, string> headers;
    std::vector<string> expressions;
    bool compiled = false;
};

/* ---- reading the source ---- */

/* Comments and literals become blanks, so that places stay the same. */
string only_code(const string &source)
{
    string code = source;
    for (size_t i = 0; i < code.size();) {
        size_t end = i + 1;
        if (!code.compare(i, 2, "//"))
            end = code.find('\n', i);
        else if (!code.compare(i, 2, "/*"))
            end = code.find("*/", i + 2) == string::npos ? string::npos : code.find("*/", i + 2) + 2;
        else if (code[i] == '"' || (code[i] == '\'' && (!i || !isalnum((unsigned char)code[i - 1])))) {
            while (end < code.size() && code[end] != code[i])
                end += code[end] == '\\' ? 2 : 1;
            i++;
        } else {
            i++;
            continue;
        }
        end = end < code.size() ? end : code.size();
        for (size_t k = i; k < end; k++)
            if (code[k] != '\n')
                code[k] = ' ';
        i = end + (end < code.size() && (code[end] == '"' || code[end] == '\''));
    }
    return code;
}

bool is_of_name(char letter)
{
    return isalnum((unsigned char)letter) || letter == '_';
}

/* The place behind the bracket that closes the one at `open`. */
size_t behind_brackets(const string &code, size_t open)
{
    int depth = 0;
    for (size_t i = open; i < code.size(); i++) {
        depth += code[i] == '(';
        depth -= code[i] == ')';
        if (!depth)
            return i + 1;
    }
    return code.size();
}

/* The name of the function that is declared from here on: what stands before the brackets of its parameters. */
string declared_name(const string &code, size_t from)
{
    for (;;) {
        size_t open = code.find('(', from);
        if (open == string::npos)
            return "";
        size_t end = open;
        while (end > 0 && isspace((unsigned char)code[end - 1]))
            end--;
        size_t start = end;
        while (start > 0 && is_of_name(code[start - 1]))
            start--;
        string name = code.substr(start, end - start);
        if (name != "__launch_bounds__")
            return name;
        from = behind_brackets(code, open);
    }
}

bool is_template(const string &code, size_t place)
{
    size_t before = code.find_last_of(";}", place);
    size_t word = code.rfind("template", place);
    return word != string::npos && (before == string::npos || word > before);
}

std::vector<string> kernels_of(const string &code)
{
    std::vector<string> found;
    const string mark = "__global__";
    for (size_t at = code.find(mark); at != string::npos; at = code.find(mark, at + 1)) {
        string name = declared_name(code, at + mark.size());
        bool known = false;
        for (const string &other : found)
            known = known || other == name;
        if (!name.empty() && !known && !is_template(code, at))
            found.push_back(name);
    }
    return found;
}

/* Whether its threads wait for one another. */
bool meets(const string &code)
{
    for (const char *word : {"__sync", "__shfl", "__ballot", "__any_sync", "__all_sync"})
        if (code.find(word) != string::npos)
            return true;
    return false;
}

/* "extern __shared__ T name[];" declares the memory whose size the launch gives. */
string with_dynamic_shared(string source, const string &code)
{
    const string mark = "extern __shared__ ";
    for (size_t at = code.rfind(mark); at != string::npos; at = at ? code.rfind(mark, at - 1) : string::npos) {
        size_t open = code.find('[', at), end = code.find(';', at);
        if (open == string::npos || end == string::npos || open > end)
            continue;
        size_t last = open;
        while (isspace((unsigned char)code[last - 1]))
            last--;
        size_t first = last;
        while (is_of_name(code[first - 1]))
            first--;
        string type = code.substr(at + mark.size(), first - at - mark.size()), name = code.substr(first, last - first);
        source.replace(at, end - at, type + "*" + name + " = (" + type + "*)standin_dynamic_shared()");
    }
    return source;
}

string quoted(const string &text)
{
    string result = "\"";
    for (char letter : text)
        result += letter == '"' || letter == '\\' ? string("\\") + letter : string(1, letter);
    return result + "\"";
}

string table(const std::vector<string> &kernels)
{
    string text = "\nextern \"C\" {\nextern const standin_kernel standin_kernels[];\n"
                  "const standin_kernel standin_kernels[] = {\n";
    for (const string &name : kernels)
        text += "standin::kernel<&" + name + ">(" + quoted(name) + "),\n";
    return text + "{nullptr, 0, nullptr, nullptr}};\n}\n";
}

/* ---- options ---- */

bool starts(const string &text, const char *with)
{
    return text.compare(0, strlen(with), with) == 0;
}

/* Of a real GPU's code only; they change nothing here. */
bool is_for_gpus_only(const string &option)
{
    for (const char *known : {"-arch", "--gpu-architecture", "-ftz", "--ftz", "-fmad", "--fmad", "-prec-", "--prec-",
                              "-use_fast_math", "--use_fast_math", "-default-device", "--device-as-default", "-lineinfo",
                              "--generate-line-info", "-G", "--device-debug", "--maxrregcount", "-maxrregcount", "--pch",
                              "-w", "--disable-warnings", "-restrict", "--restrict"})
        if (starts(option, known))
            return true;
    return false;
}

/* C++17 is the least that the prelude needs. */
string standard(const string &option)
{
    string year = option.substr(option.find("c++") + 3);
    return "-std=gnu++" + (year == "20" || year == "23" ? year : string("17"));
}

bool read_options(int count, const char *const *options, std::vector<string> &flags, string &log)
{
    string chosen = "-std=gnu++17";
    for (int i = 0; i < count; i++) {
        string option = options[i];
        if (starts(option, "-I") || starts(option, "-D") || starts(option, "-U"))
            flags.push_back(option);
        else if (starts(option, "--define-macro=") || starts(option, "--include-path="))
            flags.push_back((option[2] == 'd' ? "-D" : "-I") + option.substr(option.find('=') + 1));
        else if (starts(option, "-std=c++") || starts(option, "--std=c++"))
            chosen = standard(option);
        else if (!is_for_gpus_only(option)) {
            log = "the stand-in does not know the option " + option;
            return false;
        }
    }
    flags.push_back(chosen);
    return true;
}

/* CuPy's kernels begin with headers of CuPy, which are compiled ahead together with ours. */
string first_header(const string &source)
{
    return starts(source, "#include <cupy/complex.cuh>\n") ? stand_in_folder() + "/device/kernel.hpp" : "prelude.hpp";
}

Result compile(Program &program, const std::vector<string> &flags)
{
    string code = only_code(program.source);
    std::vector<string> kernels = kernels_of(code);
    kernels.insert(kernels.end(), program.expressions.begin(), program.expressions.end());
    program.module.clear();
    if (code.find_first_not_of(" \n\t\r") == string::npos)
        return SUCCESS;
    std::vector<string> all = flags;
    all.insert(all.end(), {meets(code) ? "-DSTANDIN_MEETS=1" : "-DSTANDIN_MEETS=0", "-include",
                           first_header(program.source)});
    string file = program.name.substr(program.name.rfind('/') + 1);   // CuPy names a temporary folder, which others lack
    string text = "#line 1 " + quoted(file) + "\n" + with_dynamic_shared(program.source, code) + table(kernels);
    string object;
    if (!compile_object(text, program.headers, all, object, program.log))
        return COMPILATION;
    standin_module_header header = {STANDIN_MODULE_MARK, object.size()};
    program.module.assign((const char *)&header, sizeof header);
    program.module += object;
    return SUCCESS;
}

string stamp()
{
    return "// CUDA stand-in " + stand_in_folder() + "\n";
}

int give(const string &text, char *out)
{
    memcpy(out, text.c_str(), text.size() + 1);
    return SUCCESS;
}

}  // namespace

extern "C" {

const char *nvrtcGetErrorString(int result)
{
    return result >= 0 && result < (int)(sizeof names / sizeof *names) ? names[result] : "NVRTC_ERROR unknown";
}

int nvrtcVersion(int *major, int *minor)
{
    *major = 12;
    *minor = 9;
    return SUCCESS;
}

int nvrtcGetNumSupportedArchs(int *count)
{
    *count = 1;
    return SUCCESS;
}

int nvrtcGetSupportedArchs(int *archs)
{
    *archs = 90;
    return SUCCESS;
}

int nvrtcCreateProgram(Program **out, const char *source, const char *name, int count, const char *const *headers,
                       const char *const *header_names)
{
    if (!out || !source || count < 0)
        return INVALID_INPUT;
    Program *program = new Program;
    program->source = source;
    program->name = name && *name ? name : "default_program";
    for (int i = 0; i < count; i++)
        program->headers[header_names[i]] = headers[i];
    *out = program;
    return SUCCESS;
}

int nvrtcDestroyProgram(Program **program)
{
    if (!program || !*program)
        return INVALID_PROGRAM;
    delete *program;
    *program = nullptr;
    return SUCCESS;
}

int nvrtcAddNameExpression(Program *program, const char *expression)
{
    if (program->compiled)
        return NO_NAME_EXPRESSIONS_AFTER_COMPILATION;
    program->expressions.push_back(expression);
    return SUCCESS;
}

int nvrtcCompileProgram(Program *program, int count, const char *const *options)
{
    std::vector<string> flags;
    if (!program)
        return INVALID_PROGRAM;
    program->compiled = true;
    if (!read_options(count, options, flags, program->log))
        return INVALID_OPTION;
    return compile(*program, flags);
}

int nvrtcGetLoweredName(Program *program, const char *expression, const char **lowered)
{
    if (!program->compiled)
        return NO_LOWERED_NAMES_BEFORE_COMPILATION;
    for (const string &known : program->expressions)
        if (known == expression) {
            *lowered = known.c_str();
            return SUCCESS;
        }
    return NAME_EXPRESSION_NOT_VALID;
}

int nvrtcGetPTXSize(Program *program, size_t *size)
{
    (void)program;
    *size = stamp().size() + 1;
    return SUCCESS;
}

int nvrtcGetPTX(Program *program, char *out)
{
    (void)program;
    return give(stamp(), out);
}

/* One byte more than the module has: CuPy takes the last for the end of a text. */
int nvrtcGetCUBINSize(Program *program, size_t *size)
{
    *size = program->module.empty() ? 0 : program->module.size() + 1;
    return SUCCESS;
}

int nvrtcGetCUBIN(Program *program, char *out)
{
    return program->module.empty() ? (int)INVALID_PROGRAM : give(program->module, out);
}

int nvrtcGetProgramLogSize(Program *program, size_t *size)
{
    *size = program->log.size() + 1;
    return SUCCESS;
}

int nvrtcGetProgramLog(Program *program, char *out)
{
    return give(program->log, out);
}

}  // extern "C"
