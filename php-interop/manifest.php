<?php

/**
 * Boots a Laravel app and prints, as JSON, facts that its queue workers know and the
 * bytes of its jobs do not contain: the resolved configuration, key prefixes, and the
 * shape of every class that can be queued.
 *
 *   php manifest.php [APP_DIR] [--with-secrets] [--env=NAME] [--config-only] > artisand.json
 *   php -- [APP_DIR] [OPTIONS] < manifest.php
 *
 * With --config-only it loads the configuration as Laravel does, boots nothing, and
 * prints only the configuration: in this way artisand asks an app for its settings.
 *
 * The JSON is one line of standard output between two lines that contain
 * only `---artisand-manifest---`, because an app may print while it
 * boots. Errors go to standard error, with exit code 1.
 *
 * It supports Laravel 5.5 to 13, so it uses the syntax of PHP 7.0. It only reads
 * the app's files: caches that Laravel writes while booting are redirected, and the
 * app's log is switched off.
 */

namespace Artisand\Manifest;

/** Why the exporter cannot answer, in words for the person who ran it. */
class Failure extends \Exception
{
}

/** PHP values in JSON. */
class Values
{
    /**
     * A value without a form in JSON becomes an object with a single `$` key, which
     * no configuration has by itself.
     */
    public static function plain($value)
    {
        if (is_array($value)) {
            $plain = [];
            foreach ($value as $key => $item) {
                $plain[self::key($key)] = self::plain($item);
            }

            return $plain;
        }

        if (is_string($value)) {
            return self::isUtf8($value) ? $value : ['$bytes' => base64_encode($value)];
        }

        if (is_float($value) && (is_nan($value) || is_infinite($value))) {
            return ['$php' => 'float '.(is_nan($value) ? 'NAN' : ($value > 0 ? 'INF' : '-INF'))];
        }

        if (is_object($value)) {
            $plain = ['$php' => get_class($value)];
            if (interface_exists('BackedEnum', false) && $value instanceof \BackedEnum) {
                $plain['value'] = self::plain($value->value);
            }

            return $plain;
        }

        return is_resource($value) || gettype($value) === 'resource (closed)'
            ? ['$php' => 'resource']
            : $value;
    }

    /** A name as text, which may be a number in PHP; null for anything else. */
    public static function name($value)
    {
        return is_int($value) || (is_string($value) && self::isUtf8($value)) ? (string) $value : null;
    }

    /** Text for people: messages of exceptions may hold any bytes. */
    public static function text($text)
    {
        return self::isUtf8($text) ? $text : preg_replace('/[^\x20-\x7e]/', '?', $text);
    }

    private static function key($key)
    {
        return is_int($key) || self::isUtf8($key) ? $key : '$bytes:'.base64_encode($key);
    }

    private static function isUtf8($text)
    {
        return preg_match('//u', $text) === 1;
    }
}

/**
 * Takes secrets out of configuration. Where the environment has the same value,
 * its name is left in place of the value, so that the manifest stays valid when
 * the secret is rotated.
 */
class Secrets
{
    const KEYS = '/^(password|passwd|pwd|passphrase|auth|key|secret|token|previous_keys|sasl|credentials)$'
        .'|(^|_)(password|secret|token)$|_(key|keys)$/i';

    /** Variables that PHP or a shell sets and that never are where a secret comes from. */
    const NOT_SOURCES = '/^(PWD|OLDPWD|_|SHLVL|HOME|PATH|argv|argc|PHP_SELF|SCRIPT_.*|PATH_TRANSLATED|REQUEST_TIME.*)$/';

    private $environment;

    private $missing = [];

    private $notes;

    public function __construct(Notes $notes)
    {
        $this->notes = $notes;
    }

    public function removed(array $config)
    {
        $clean = $this->remove($config, '', false);
        if ($this->missing !== []) {
            $this->notes->add(
                'secrets that no environment variable holds were left out of config: '.implode(', ', $this->missing)
                .'; let the app take them from its environment, or export with --with-secrets and protect the file'
            );
        }

        return $clean;
    }

    private function remove($config, $path, $secret)
    {
        if (! is_array($config)) {
            return $this->isEmpty($config) || (! $secret && ! $this->carriesPassword($config))
                ? $config
                : $this->replacement($config, $path);
        }

        if ($secret && $this->isPreviousKeys($config, $path)) {
            return ['$env' => 'APP_PREVIOUS_KEYS'];
        }

        $clean = [];
        foreach ($config as $key => $value) {
            $inner = $path === '' ? (string) $key : $path.'.'.$key;
            $clean[$key] = $this->remove($value, $inner, $secret || $this->isSecretKey($key, $path, $config));
        }

        return $clean;
    }

    private function isEmpty($value)
    {
        return $value === null || $value === '' || is_bool($value);
    }

    private function isSecretKey($key, $path, array $siblings)
    {
        if (! is_string($key) || ! preg_match(self::KEYS, $key)) {
            return false;
        }

        // DynamoDB's `attributes` name columns, and one of them is called `key`;
        // the session store has a key in the session.
        return ! preg_match('/\.attributes$/', $path)
            && ! ($key === 'key' && isset($siblings['driver']) && $siblings['driver'] === 'session');
    }

    /** A URL with a password, or a DSN. */
    private function carriesPassword($value)
    {
        return is_string($value) && (
            preg_match('~^[a-z][a-z0-9+.-]*://[^/?#]*:[^/?#]+@~i', $value)
            || preg_match('~(^|[?&;\s])(password|passwd|pwd|auth|secret|token)\s*=\s*[^&;\s]~i', $value)
        );
    }

    private function isPreviousKeys(array $config, $path)
    {
        $text = $config === [] ? null : $this->fromEnvironment('APP_PREVIOUS_KEYS');

        return preg_match('/(^|\.)previous_keys$/', $path) && is_string($text)
            && array_values($config) === array_values(array_filter(explode(',', $text)));
    }

    private function replacement($value, $path)
    {
        $best = null;
        $bestRank = null;
        foreach ($this->environment() as $name => $content) {
            if ($content !== $value) {
                continue;
            }
            $rank = $this->rank($name, $path);
            // A password that is the word `local` does not come from APP_ENV.
            if ($rank[0] === 1 && $rank[1] === 0) {
                continue;
            }
            if ($bestRank === null || $rank < $bestRank) {
                $best = $name;
                $bestRank = $rank;
            }
        }

        if ($best !== null) {
            return ['$env' => $best];
        }

        $this->missing[] = $path;

        return ['$secret' => true];
    }

    /**
     * One password may be the value of several variables. The name that sounds
     * like a secret and like its setting comes first, then the
     * shortest.
     */
    private function rank($name, $path)
    {
        $words = preg_split('/[^a-z0-9]+/', strtolower($path));
        if (in_array('redis', $words, true)) {
            $words = array_diff($words, ['database']);
        } elseif (in_array('database', $words, true)) {
            $words[] = 'db';
        }
        $common = array_intersect(array_unique(preg_split('/[^a-z0-9]+/', strtolower($name))), $words);

        return [
            preg_match('/PASSWORD|KEY|SECRET|TOKEN|URL/i', $name) ? 0 : 1,
            -count($common),
            strlen($name),
            $name,
        ];
    }

    private function fromEnvironment($name)
    {
        $environment = $this->environment();

        return isset($environment[$name]) ? $environment[$name] : null;
    }

    /** Every variable as `env()` returns it. */
    private function environment()
    {
        if ($this->environment !== null) {
            return $this->environment;
        }

        // Without an argument getenv() lists variables only since PHP 7.1.
        $names = array_merge(array_keys($_SERVER), array_keys($_ENV));
        if (PHP_VERSION_ID >= 70100) {
            $names = array_merge($names, array_keys(getenv()));
        }
        $this->environment = [];
        foreach (array_unique($names) as $name) {
            $name = (string) $name;
            if (preg_match(self::NOT_SOURCES, $name) || in_array($name, Redirects::VARIABLES, true)) {
                continue;
            }
            try {
                $value = function_exists('env') ? env($name) : self::cast($name);
            } catch (\Throwable $e) {
                continue;
            }
            if (is_string($value)) {
                $this->environment[$name] = $value;
            }
        }

        return $this->environment;
    }

    /** Does the same as env(), if Laravel is not loaded. */
    private static function cast($name)
    {
        $value = isset($_SERVER[$name]) ? $_SERVER[$name] : (isset($_ENV[$name]) ? $_ENV[$name] : getenv($name));
        if (! is_string($value) || preg_match('/^(true|false|empty|null|\((true|false|empty|null)\))$/i', $value)) {
            return null;
        }

        return preg_match('/\A([\'"])(.*)\1\z/', $value, $matches) ? $matches[2] : $value;
    }
}

/** Remarks for the person who reads the manifest. */
class Notes
{
    public $list = [];

    public function add($note)
    {
        $note = Values::text($note);
        if (! in_array($note, $this->list, true)) {
            $this->list[] = $note;
        }
    }

    public function exception($what, $exception)
    {
        $this->add($what.': '.Failures::describe($exception));
    }
}

class Failures
{
    public static function describe($exception)
    {
        return Values::text(sprintf(
            '%s: %s (%s:%d)',
            get_class($exception),
            preg_replace('/\s+/', ' ', $exception->getMessage()),
            $exception->getFile(),
            $exception->getLine()
        ));
    }
}

/**
 * Prevents a booting Laravel from writing into the app: its lists of packages and
 * services go to temporary copies, and its log is dropped.
 */
class Redirects
{
    const VARIABLES = ['APP_SERVICES_CACHE', 'APP_PACKAGES_CACHE'];

    private $files = [];

    /** Before the app object exists. */
    public function environment($base)
    {
        $this->redirect('APP_SERVICES_CACHE', $base, 'services');
        $this->redirect('APP_PACKAGES_CACHE', $base, 'packages');
    }

    /** Between the app object and its boot. */
    public function application($app)
    {
        $app->afterBootstrapping('Illuminate\Foundation\Bootstrap\LoadConfiguration', function ($app) {
            $this->silence($app->make('config'));
        });

        $packages = $this->files['APP_PACKAGES_CACHE'];
        $services = $this->files['APP_SERVICES_CACHE'];
        $filesystem = 'Illuminate\Filesystem\Filesystem';

        // Before 5.7 or so no variable moves these two.
        if ($app->getCachedPackagesPath() !== $packages) {
            $manifest = 'Illuminate\Foundation\PackageManifest';
            $app->instance($manifest, new $manifest(new $filesystem(), $app->basePath(), $packages));
        }
        if ($app->getCachedServicesPath() !== $services) {
            $app->instance(
                'Illuminate\Foundation\Bootstrap\RegisterProviders',
                new RegisterProvidersAt($services)
            );
        }
    }

    public function remove()
    {
        foreach ($this->files as $file) {
            if (is_file($file)) {
                @unlink($file);
            }
        }
    }

    private function redirect($variable, $base, $name)
    {
        $own = getenv($variable);
        if ($own === false || $own === '') {
            $own = $base.'/bootstrap/cache/'.$name.'.php';
        } elseif (! preg_match('~^([/\\\\]|[A-Za-z]:)~', $own)) {
            $own = $base.'/'.$own;
        }

        $file = sys_get_temp_dir().'/artisand-'.getmypid().'-'.uniqid('', true).'-'.$name.'.php';
        $this->files[$variable] = $file;
        if (is_file($own)) {
            copy($own, $file);
            // With an old modification time, an opcode cache accepts the copy at once.
            touch($file, filemtime($own));
        }
        putenv($variable.'='.$file);
        $_ENV[$variable] = $file;
        $_SERVER[$variable] = $file;
    }

    private function silence($config)
    {
        $nowhere = ['driver' => 'monolog', 'handler' => 'Monolog\Handler\NullHandler'];
        $channels = $config->get('logging.channels');
        $channels = is_array($channels) ? array_map(function () use ($nowhere) {
            return $nowhere;
        }, $channels) : [];
        $config->set('logging.channels', array_merge($channels, [
            'artisand' => $nowhere, 'null' => $nowhere, 'emergency' => ['path' => 'php://stderr'],
        ]));
        $config->set('logging.default', 'artisand');
        $config->set('app.log', 'errorlog');
    }
}

/** Replaces the framework's bootstrapper on versions with a fixed path. */
class RegisterProvidersAt
{
    private $path;

    public function __construct($path)
    {
        $this->path = $path;
    }

    public function bootstrap($app)
    {
        $filesystem = 'Illuminate\Filesystem\Filesystem';
        $repository = 'Illuminate\Foundation\ProviderRepository';
        $providers = [[], [], []];
        foreach ($app->make('config')->get('app.providers', []) as $provider) {
            $providers[strpos($provider, 'Illuminate\\') === 0 ? 0 : 2][] = $provider;
        }
        $providers[1] = $app->make('Illuminate\Foundation\PackageManifest')->providers();

        (new $repository($app, new $filesystem(), $this->path))
            ->load(array_merge($providers[0], $providers[1], $providers[2]));
    }
}

/**
 * Finds out which settings come from which variables of the environment: it loads
 * the configuration again with other values of each variable, and compares.
 * It keeps neither a loaded configuration nor the value of a variable.
 */
class Variables
{
    /** A number, and a text that every helper changes. */
    const PROBES = ['20731', 'Artisand Probe/7'];

    const READS = '/(?:\benv|\bgetenv|Env::get|Env::getOrFail)\s*\(\s*[\'"]([A-Za-z_][A-Za-z0-9_]*)[\'"]'
        .'|\$_(?:ENV|SERVER)\s*\[\s*[\'"]([A-Za-z_][A-Za-z0-9_]*)[\'"]/';

    private $app;

    private $parts;

    /** $parts returns the parts of a repository that a manifest contains. */
    public function __construct($app, callable $parts)
    {
        $this->app = $app;
        $this->parts = $parts;
    }

    /**
     * By JSON pointer: `is`, the variables whose plain text is the setting, the one
     * that wins first; `from`, the variables from which it is computed; and
     * `unknown`, the variables with which the configuration could not be loaded.
     */
    public function ofSettings(array $used)
    {
        $used = $this->flat($used);
        $base = $this->load();
        $is = [];
        $from = [];
        $unknown = [];
        foreach ($this->names() as $name) {
            $found = [];
            foreach (self::PROBES as $probe) {
                try {
                    $found[] = $this->with([$name => $probe]);
                } catch (\Throwable $e) {
                    $unknown[] = $name;
                    continue 2;
                }
            }
            foreach ($used as $pointer => $value) {
                // A provider may have changed a setting after the files were read.
                if (! array_key_exists($pointer, $base) || $base[$pointer] !== $value) {
                    continue;
                }
                $seen = array_map(function ($settings) use ($pointer) {
                    return array_key_exists($pointer, $settings) ? $settings[$pointer] : null;
                }, $found);
                if ($seen[0] === $value && $seen[1] === $value) {
                    continue;
                }
                $isNumber = $seen[0] === (int) self::PROBES[0] && $seen[1] === 0;
                if ($seen === self::PROBES || $isNumber) {
                    $is[$pointer][] = $name;
                } else {
                    $from[$pointer][] = $name;
                }
            }
        }

        $facts = [];
        foreach (array_keys($is + $from) as $pointer) {
            $facts[$pointer] = array_filter([
                'is' => $this->ordered($pointer, isset($is[$pointer]) ? $is[$pointer] : []),
                'from' => isset($from[$pointer]) ? $from[$pointer] : [],
            ]);
        }

        return ['settings' => (object) $facts, 'unknown' => $unknown];
    }

    /** Hashes of the variables' current values: a reader can tell that a value changed, but not what it was. */
    public static function marks(array $names)
    {
        $salt = bin2hex(random_bytes(16));
        $marks = [];
        foreach ($names as $name) {
            $value = self::raw($name);
            $marks[$name] = $value === null ? null : hash('sha256', $salt.$name."\0".$value);
        }

        return ['salt' => $salt, 'marks' => (object) $marks];
    }

    /** Orders several variables of one setting by the order in which they are read. */
    private function ordered($pointer, array $names)
    {
        $ordered = [];
        while (count($names) > 1) {
            $values = [];
            foreach ($names as $number => $name) {
                $values[$name] = (string) (30000 + $number);
            }
            try {
                $settings = $this->with($values);
            } catch (\Throwable $e) {
                break;
            }
            $winner = array_search(isset($settings[$pointer]) ? (string) $settings[$pointer] : '', $values, true);
            if ($winner === false) {
                break;
            }
            $ordered[] = $winner;
            $names = array_values(array_diff($names, [$winner]));
        }

        return array_merge($ordered, $names);
    }

    private function names()
    {
        $framework = new \ReflectionClass('Illuminate\Foundation\Application');
        $files = array_merge(
            glob($this->app->configPath().'/*.php') ?: [],
            glob(dirname($framework->getFileName(), 4).'/config/*.php') ?: []
        );
        $names = [];
        foreach ($files as $file) {
            preg_match_all(self::READS, (string) file_get_contents($file), $matches);
            $names = array_merge($names, array_filter($matches[1]), array_filter($matches[2]));
        }
        sort($names);

        return array_values(array_unique($names));
    }

    private function load()
    {
        $loader = new \Illuminate\Foundation\Bootstrap\LoadConfiguration();
        $repository = new \Illuminate\Config\Repository([]);
        $load = new \ReflectionMethod($loader, 'loadConfigurationFiles');
        $load->setAccessible(true);
        $load->invoke($loader, $this->app, $repository);

        return $this->flat(call_user_func($this->parts, $repository));
    }

    private function with(array $values)
    {
        $before = [];
        foreach ($values as $name => $value) {
            $before[$name] = [
                array_key_exists($name, $_SERVER) ? [$_SERVER[$name]] : [],
                array_key_exists($name, $_ENV) ? [$_ENV[$name]] : [],
                getenv($name),
            ];
            $_SERVER[$name] = $_ENV[$name] = $value;
            putenv($name.'='.$value);
        }
        try {
            return $this->load();
        } finally {
            foreach ($before as $name => $was) {
                unset($_SERVER[$name], $_ENV[$name]);
                if ($was[0] !== []) {
                    $_SERVER[$name] = $was[0][0];
                }
                if ($was[1] !== []) {
                    $_ENV[$name] = $was[1][0];
                }
                putenv($was[2] === false ? $name : $name.'='.$was[2]);
            }
        }
    }

    private static function raw($name)
    {
        $value = isset($_SERVER[$name]) ? $_SERVER[$name] : (isset($_ENV[$name]) ? $_ENV[$name] : getenv($name));

        return is_string($value) ? $value : null;
    }

    /** Scalars and nulls, by JSON pointer. */
    private function flat(array $config, $start = '')
    {
        $flat = [];
        foreach ($config as $key => $value) {
            $pointer = $start.'/'.str_replace(['~', '/'], ['~0', '~1'], (string) $key);
            if (is_array($value)) {
                $flat += $this->flat($value, $pointer);
            } elseif ($value === null || is_scalar($value)) {
                $flat[$pointer] = $value;
            }
        }

        return $flat;
    }
}

/** Finds class declarations in files of the app and of its packages without running them. */
class Sources
{
    const SKIPPED = ['vendor', 'node_modules', 'storage', 'bootstrap', 'public', 'tests'];

    /** Directories of packages without classes that an app uses. */
    const SKIPPED_IN_PACKAGES = '~(^|/)(\\.[^/]*|docs?|examples?|fixtures|node_modules|stubs|tests?|vendor)(/|$)~i';

    /** Interfaces, in lower case, of what is queued. */
    const QUEUED = [
        'illuminate\contracts\queue\shouldqueue',
        'illuminate\contracts\broadcasting\shouldbroadcast',
    ];

    /** Longest time for reading the files of packages, in seconds. */
    const PACKAGES_LIMIT = 30;

    private $base;

    public function __construct($base)
    {
        $this->base = $base;
    }

    /** Class name => file, in the order of files. */
    public function classes(array $composer)
    {
        $files = [];
        foreach ($this->directories($composer) as $directory) {
            foreach ($this->phpFiles($directory) as $file) {
                $files[$file] = true;
            }
        }
        foreach ($this->classMap($composer) as $file) {
            $files[$file] = true;
        }
        $files = array_keys($files);
        sort($files, SORT_STRING);

        $classes = [];
        foreach ($files as $file) {
            foreach (self::declarations((string) @file_get_contents($file)) as $class => $declared) {
                // A class that extends and implements nothing can only be a listener.
                $mayCount = $declared['parents'] !== [] || self::isListenerFile($file);
                if (! isset($classes[$class]) && $declared['class'] && $mayCount) {
                    $classes[$class] = $file;
                }
            }
        }

        return $classes;
    }

    /**
     * Class name => file, of the queued classes of packages.
     *
     * Only the text of the files says so: to load a file that is no class, or whose
     * parent is not installed, may do harm, and there are thousands of them. A class whose
     * parent is queued need not contain the word, so names that were found are searched for next.
     */
    public function queuedOfPackages(Notes $notes)
    {
        $deadline = microtime(true) + self::PACKAGES_LIMIT;
        $unread = $this->packageFiles($deadline);
        $queued = array_fill_keys(self::QUEUED, true);
        $declared = [];
        $classes = [];
        for ($names = ['ShouldQueue', 'ShouldBroadcast']; $names !== [];) {
            $pattern = '/\b('.implode('|', array_map('preg_quote', array_unique($names))).')\b/';
            $names = [];
            foreach ($unread as $at => $file) {
                if (microtime(true) > $deadline) {
                    $notes->add('reading the files of packages took more than '.self::PACKAGES_LIMIT
                        .' seconds: some of their queued classes are missing');

                    return $classes;
                }
                $code = (string) @file_get_contents($file);
                if (preg_match($pattern, $code)) {
                    unset($unread[$at]);
                    foreach (self::declarations($code) as $name => $declaration) {
                        $declared += [$name => $declaration + ['file' => $file]];
                    }
                }
            }
            do {
                $before = count($queued);
                foreach ($declared as $name => $declaration) {
                    $parents = array_flip(array_map('strtolower', $declaration['parents']));
                    if (! isset($queued[strtolower($name)]) && array_intersect_key($parents, $queued) !== []) {
                        $queued[strtolower($name)] = true;
                        $names[] = substr((string) strrchr('\\'.$name, '\\'), 1);
                        if ($declaration['class']) {
                            $classes[$name] = $declaration['file'];
                        }
                    }
                }
            } while (count($queued) > $before);
        }

        return $classes;
    }

    public static function isListenerFile($file)
    {
        return preg_match('~[/\\\\]Listeners[/\\\\]~', $file) === 1;
    }

    /** True for files of the app itself, not of packages that Composer installed. */
    public function isOurs($file)
    {
        if (! is_string($file) || strpos($file, $this->base.DIRECTORY_SEPARATOR) !== 0) {
            return false;
        }
        $first = explode(DIRECTORY_SEPARATOR, substr($file, strlen($this->base) + 1), 2);

        return ! isset($first[1]) || ! in_array($first[0], self::SKIPPED, true);
    }

    /** Files of packages, as far as the loader finds classes in them. */
    private function packageFiles($deadline)
    {
        $files = [];
        foreach ($this->loaders() as $loader) {
            $directories = array_merge($loader->getPrefixesPsr4(), $loader->getPrefixes());
            foreach ($directories === [] ? [] : array_merge(...array_values($directories)) as $directory) {
                $directory = microtime(true) > $deadline ? false : realpath($directory);
                if (is_string($directory) && $this->isPackages($directory.DIRECTORY_SEPARATOR.'x')) {
                    $files += array_flip($this->phpFiles($directory, function ($entry) {
                        return ! preg_match(self::SKIPPED_IN_PACKAGES, $entry->getFilename());
                    }));
                }
            }
            foreach ($loader->getClassMap() as $file) {
                $file = realpath($file);
                $inside = preg_replace('~^.*/vendor/~', '', strtr((string) $file, '\\', '/'));
                if ($this->isPackages($file) && ! preg_match(self::SKIPPED_IN_PACKAGES, $inside)) {
                    $files[$file] = true;
                }
            }
        }
        ksort($files, SORT_STRING);

        return array_keys($files);
    }

    private function isPackages($file)
    {
        return is_string($file) && ! $this->isOurs($file)
            && (strpos($file, $this->base.DIRECTORY_SEPARATOR) !== 0
                || strpos($file, $this->base.DIRECTORY_SEPARATOR.'vendor'.DIRECTORY_SEPARATOR) === 0);
    }

    private function directories(array $composer)
    {
        $found = [];
        $development = [];
        foreach (['autoload-dev' => false, 'autoload' => true] as $section => $wanted) {
            foreach (['psr-4', 'psr-0'] as $standard) {
                $prefixes = isset($composer[$section][$standard]) ? $composer[$section][$standard] : [];
                foreach ((array) $prefixes as $prefix => $directories) {
                    foreach ((array) $directories as $directory) {
                        $directory = realpath($this->base.'/'.$directory);
                        if ($wanted) {
                            $found[] = $directory;
                        } else {
                            $development[] = $directory;
                        }
                    }
                }
            }
        }

        // Modules and packages inside the app's tree have separate autoload rules,
        // which only the loader knows.
        foreach ($this->loaders() as $loader) {
            foreach ($loader->getPrefixesPsr4() as $directories) {
                foreach ($directories as $directory) {
                    $found[] = realpath($directory);
                }
            }
        }

        return array_filter(array_unique($found), function ($directory) use ($development) {
            return is_string($directory) && ! in_array($directory, $development, true)
                && ($directory === $this->base || $this->isOurs($directory.DIRECTORY_SEPARATOR.'x'));
        });
    }

    private function classMap(array $composer)
    {
        $files = [];
        foreach ($this->loaders() as $loader) {
            foreach ($loader->getClassMap() as $file) {
                $file = realpath($file);
                if ($this->isOurs($file)) {
                    $files[] = $file;
                }
            }
        }
        $entries = isset($composer['autoload']['classmap']) ? $composer['autoload']['classmap'] : [];
        foreach ((array) $entries as $entry) {
            $entry = realpath($this->base.'/'.$entry);
            if (is_string($entry) && is_dir($entry)) {
                $files = array_merge($files, $this->phpFiles($entry));
            } elseif ($this->isOurs($entry)) {
                $files[] = $entry;
            }
        }

        return $files;
    }

    private function loaders()
    {
        $loaders = [];
        foreach (spl_autoload_functions() ?: [] as $function) {
            if (is_array($function) && is_a($function[0], 'Composer\Autoload\ClassLoader')) {
                $loaders[] = $function[0];
            }
        }

        return $loaders;
    }

    /** `$enters` says into which directories to go; the default is those of the app. */
    private function phpFiles($directory, $enters = null)
    {
        $enters = $enters ?: function ($entry) {
            return $this->isOurs($entry->getPathname().DIRECTORY_SEPARATOR.'x');
        };
        $tree = new \RecursiveDirectoryIterator($directory, \FilesystemIterator::SKIP_DOTS);
        $tree = new \RecursiveCallbackFilterIterator($tree, function ($entry) use ($enters) {
            return $entry->isDir()
                ? $entry->getFilename()[0] !== '.' && ! $entry->isLink() && $enters($entry)
                : $entry->getExtension() === 'php' && strpos($entry->getFilename(), '.blade.php') === false;
        });
        $files = [];
        foreach (new \RecursiveIteratorIterator($tree, 0, \RecursiveIteratorIterator::CATCH_GET_CHILD) as $file) {
            $files[] = $file->getPathname();
        }

        return $files;
    }

    /**
     * Name of a class or an interface => `class`, whether it is a class, and `parents`, what it extends
     * and implements.
     */
    public static function declarations($code)
    {
        if (stripos($code, 'class') === false && stripos($code, 'interface') === false) {
            return [];
        }

        $tokens = [];
        foreach (token_get_all($code) as $token) {
            if (! is_array($token)) {
                $tokens[] = [null, $token];
            } elseif (! in_array($token[0], [T_WHITESPACE, T_COMMENT, T_DOC_COMMENT], true)) {
                $tokens[] = $token;
            }
        }

        $classes = [];
        $namespace = '';
        $imports = self::imports($code);
        foreach ($tokens as $at => $token) {
            if ($token[0] === T_NAMESPACE) {
                $name = '';
                for ($next = $at + 1; isset($tokens[$next]) && $tokens[$next][0] !== null; $next++) {
                    $name .= $tokens[$next][1];
                }
                // `namespace\name` refers to the current one.
                if (strpos($name, '\\') !== 0) {
                    $namespace = $name === '' ? '' : $name.'\\';
                }
            }
            $named = isset($tokens[$at + 1]) && $tokens[$at + 1][0] === T_STRING;
            $before = $at > 0 ? $tokens[$at - 1][0] : null;
            $declares = in_array($token[0], [T_CLASS, T_INTERFACE], true);
            if ($declares && $named && $before !== T_DOUBLE_COLON && $before !== T_NEW) {
                $parents = [];
                for ($next = $at + 2; isset($tokens[$next]) && $tokens[$next][1] !== '{'; $next++) {
                    if ($tokens[$next][1] === ',' || in_array($tokens[$next][0], [T_EXTENDS, T_IMPLEMENTS], true)) {
                        $parents[] = '';
                    } elseif ($parents !== []) {
                        $parents[count($parents) - 1] .= $tokens[$next][1];
                    }
                }
                foreach ($parents as $number => $parent) {
                    $parts = explode('\\', $parent, 2);
                    if ($parts[0] !== '') {
                        $first = strtolower($parts[0]);
                        $parts[0] = isset($imports[$first]) ? $imports[$first] : $namespace.$parts[0];
                    }
                    $parents[$number] = ltrim(implode('\\', $parts), '\\');
                }
                $classes[$namespace.$tokens[$at + 1][1]] = ['class' => $token[0] === T_CLASS, 'parents' => $parents];
            }
        }

        return $classes;
    }

    /** Full names by the names that `use` gives them, in lower case. */
    private static function imports($code)
    {
        $imports = [];
        preg_match_all('/^[ \t]*use\s+([^;(]+);/mi', $code, $uses);
        foreach ($uses[1] as $use) {
            $group = preg_match('/^(.*)\{(.*)\}\s*$/s', $use, $parts);
            foreach (explode(',', $group ? $parts[2] : $use) as $item) {
                if (preg_match('/^\s*([^\s]+)(?:\s+as\s+([^\s]+))?\s*$/i', $item, $names)) {
                    $full = ltrim(($group ? trim($parts[1]) : '').$names[1], '\\');
                    $own = isset($names[2]) ? $names[2] : substr((string) strrchr('\\'.$full, '\\'), 1);
                    // Later ones may be traits, in the body of a class.
                    $imports += [strtolower($own) => $full];
                }
            }
        }

        return $imports;
    }
}

/**
 * Loads classes in a separate process first: a method that does not match its
 * parent's, or a name declared twice, ends PHP and cannot be caught.
 */
class Probe
{
    const MARK = 'artisand-probe:';

    const CODE = 'error_reporting(E_ALL & ~E_DEPRECATED & ~E_WARNING & ~E_NOTICE);'
        .'$in = json_decode(stream_get_contents(fopen("php://stdin", "r")), true);'
        .'require $in["autoload"];'
        .'foreach ($in["classes"] as $number => $class) {'
        .'    echo "\n", $in["mark"], $number, "\n"; flush();'
        .'    try { class_exists($class); } catch (Throwable $e) { }'
        .'}'
        .'echo "\n", $in["mark"], "done\n";';

    private $autoload;

    private $notes;

    public function __construct($autoload, Notes $notes)
    {
        $this->autoload = $autoload;
        $this->notes = $notes;
    }

    /**
     * The classes that can be loaded without ending the process.
     *
     * If no other process can be started, `$untried` says which to load all the same.
     */
    public function survivors(array $classes, array $untried)
    {
        if (! function_exists('proc_open') || ! is_string(PHP_BINARY) || PHP_BINARY === '') {
            return $untried;
        }

        $names = array_keys($classes);
        $good = [];
        for ($deaths = 0; $names !== [] && $deaths < 50; $deaths++) {
            $output = $this->run($names);
            if (! preg_match_all('/^'.self::MARK.'(done|\d+)$/m', $output, $matches, PREG_OFFSET_CAPTURE)) {
                // The child cannot even start.
                return $good + $untried;
            }
            $last = end($matches[1]);
            if ($last[0] === 'done') {
                $last[0] = count($names);
            } else {
                $class = $names[(int) $last[0]];
                $this->notes->add("{$classes[$class]}: {$class} was left out, loading it ends PHP: "
                    .$this->message(substr($output, $last[1] + strlen($last[0]))));
            }
            foreach (array_slice($names, 0, (int) $last[0]) as $name) {
                $good[$name] = $classes[$name];
            }
            $names = array_slice($names, (int) $last[0] + 1);
        }

        return $good;
    }

    private function run(array $names)
    {
        $command = escapeshellarg(PHP_BINARY).' -d display_errors=1 -d log_errors=0 -d html_errors=0'
            .' -d memory_limit=-1 -r '.escapeshellarg(self::CODE).' 2>&1';
        $process = @proc_open($command, [['pipe', 'r'], ['pipe', 'w']], $pipes);
        if (! is_resource($process)) {
            return '';
        }
        @fwrite($pipes[0], json_encode([
            'autoload' => $this->autoload, 'classes' => $names, 'mark' => self::MARK,
        ]));
        fclose($pipes[0]);
        $output = (string) stream_get_contents($pipes[1]);
        fclose($pipes[1]);
        proc_close($process);

        return $output;
    }

    private function message($output)
    {
        $output = trim(preg_replace('/\s+/', ' ', $output));

        return $output === '' ? 'it calls exit' : substr($output, 0, 500);
    }
}

/** The manifest's facts about a class. */
class Classes
{
    const LIMITS = [
        // name => [attribute (Laravel 13), methods that replace it]
        'tries' => ['Tries', ['tries']],
        'timeout' => ['Timeout', []],
        'backoff' => ['Backoff', ['backoff']],
        'maxExceptions' => ['MaxExceptions', []],
        'failOnTimeout' => ['FailOnTimeout', []],
        'retryUntil' => [null, ['retryUntil']],
        'connection' => ['Connection', ['viaConnection', 'viaConnections']],
        'queue' => ['Queue', ['viaQueue', 'viaQueues']],
        'delay' => ['Delay', ['withDelay']],
        'afterCommit' => [null, []],
        'deleteWhenMissingModels' => ['DeleteWhenMissingModels', []],
        'debounceFor' => ['DebounceFor', []],
    ];

    private $base;

    private $notes;

    private $laravel;

    public function __construct($base, $laravel, Notes $notes)
    {
        $this->base = $base;
        $this->laravel = $laravel;
        $this->notes = $notes;
    }

    public function describe(\ReflectionClass $class, $kind, array $events)
    {
        $traits = $this->traits($class);
        $serializesModels = in_array('Illuminate\Queue\SerializesModels', $traits, true);
        $uniqueFor = $this->limit($class, 'uniqueFor', 'UniqueFor', ['uniqueFor']);

        return [
            'kind' => $kind,
            'file' => $this->relative($class->getFileName()),
            'mtime' => (int) filemtime($class->getFileName()),
            'sources' => (object) $this->sources($class, $traits),
            'properties' => $this->properties($class, $serializesModels),
            'limits' => $this->limits($class, $kind),
            'flags' => [
                'queued' => $this->implementing($class, 'Illuminate\Contracts\Queue\ShouldQueue'),
                'unique' => $this->implementing($class, 'Illuminate\Contracts\Queue\ShouldBeUnique'),
                'unique_until_processing' => $this->implementing(
                    $class,
                    'Illuminate\Contracts\Queue\ShouldBeUniqueUntilProcessing'
                ),
                'encrypted' => $this->implementing($class, 'Illuminate\Contracts\Queue\ShouldBeEncrypted')
                    || $this->publicDefault($class, 'shouldBeEncrypted') === true,
                'batchable' => in_array('Illuminate\Bus\Batchable', $traits, true),
                'serializes_models' => $serializesModels,
                'interacts_with_queue' => in_array('Illuminate\Queue\InteractsWithQueue', $traits, true),
                'should_handle_events_after_commit' => $this->implementing(
                    $class,
                    'Illuminate\Contracts\Events\ShouldHandleEventsAfterCommit'
                ),
                'failed' => $class->hasMethod('failed') && ! $this->isFrameworks($class, 'failed'),
                'tags' => $class->hasMethod('tags'),
                'queues_itself' => $class->hasMethod('queue'),
                'invokable' => $class->hasMethod('__invoke') && ! $class->hasMethod('handle'),
                'groups_itself' => $this->groupsItself($class),
                'prepares_for_dispatch' => $this->implementing($class, 'Illuminate\Contracts\Queue\PreparesForDispatch'),
            ],
            'unique_id' => $this->source($class, 'uniqueId'),
            'unique_for' => $uniqueFor,
            'unique_via' => $class->hasMethod('uniqueVia'),
            'debounce_via' => $class->hasMethod('debounceVia'),
            'display_name' => $class->hasMethod('displayName'),
            'methods' => (object) $this->methods($class),
            'middleware' => [
                'method' => $class->hasMethod('middleware') && ! $this->isFrameworks($class, 'middleware'),
                'property' => array_values(array_filter(
                    (array) $this->publicDefault($class, 'middleware'),
                    'is_string'
                )),
                'named' => $class->hasMethod('middleware') ? $this->named($class->getMethod('middleware')) : [],
            ],
            'handle' => $this->parameters($class),
            'constructor' => Constructor::of($class),
            'listens' => $events,
            'parents' => $this->parents($class),
            'interfaces' => $class->getInterfaceNames(),
            'uses' => $traits,
        ];
    }

    /** Laravel's own classes around those of the app, with their properties in this version. */
    public function wrappers()
    {
        $found = [];
        foreach ([
            'Illuminate\Events\CallQueuedListener',
            'Illuminate\Notifications\SendQueuedNotifications',
            'Illuminate\Mail\SendQueuedMailable',
            'Illuminate\Foundation\Console\QueuedCommand',
        ] as $name) {
            if (class_exists($name)) {
                $class = new \ReflectionClass($name);
                $traits = $this->traits($class);
                $models = in_array('Illuminate\Queue\SerializesModels', $traits, true);
                $found[$name] = [
                    'kind' => 'wrapper',
                    'file' => '',
                    'properties' => $this->properties($class, $models),
                    'uses' => $traits,
                ];
            }
        }

        return $found;
    }

    public function model(\ReflectionClass $class)
    {
        $constructor = $class->getConstructor();
        if ($constructor && $constructor->getNumberOfRequiredParameters() > 0) {
            $this->notes->add("model {$class->getName()} was left out: its constructor has required parameters");

            return null;
        }

        $model = $class->newInstance();
        $table = Values::name($model->getTable());
        if ($table === null) {
            $this->notes->add("model {$class->getName()} was left out: the name of its table is no text");

            return null;
        }

        return [
            'table' => $table,
            // Null also for a key of several columns, a list, by which only the app's code finds a row.
            'key' => Values::name($model->getKeyName()),
            'key_type' => Values::name($model->getKeyType()),
            'incrementing' => (bool) $model->getIncrementing(),
            'connection' => Values::name($model->getConnectionName()),
            'morph_class' => Values::name($model->getMorphClass()),
            'pivot' => $this->pivot($class),
            'restored_by_code' => $class->hasMethod('newQueryForRestoration')
                && ! preg_match(
                    '~[/\\\\]Illuminate[/\\\\]Database[/\\\\]~',
                    (string) $class->getMethod('newQueryForRestoration')->getFileName()
                ),
            'file' => $this->relative($class->getFileName()),
            'mtime' => (int) filemtime($class->getFileName()),
        ];
    }

    /** Null for a model that is no pivot. */
    private function pivot(\ReflectionClass $class)
    {
        $relations = 'Illuminate\Database\Eloquent\Relations\\';
        if ($class->isSubclassOf($relations.'MorphPivot')) {
            return 'morph';
        }
        $isPivot = $class->isSubclassOf($relations.'Pivot')
            || in_array($relations.'Concerns\AsPivot', $this->traits($class), true);

        return $isPivot ? 'plain' : null;
    }

    /** In the order in which serialize() writes them. */
    private function properties(\ReflectionClass $class, $serializesModels)
    {
        $list = [];
        foreach ($this->ordered($class, $serializesModels) as $property) {
            if (method_exists($property, 'isVirtual') && $property->isVirtual()) {
                continue;
            }
            $entry = [
                'name' => $property->getName(),
                'visibility' => $property->isPublic() ? 'public' : ($property->isPrivate() ? 'private' : 'protected'),
                'class' => $property->getDeclaringClass()->getName(),
                'readonly' => method_exists($property, 'isReadOnly') && $property->isReadOnly(),
                'type' => $this->type($property),
            ];
            try {
                $defaults = $property->getDeclaringClass()->getDefaultProperties();
                if (array_key_exists($property->getName(), $defaults)) {
                    $entry['default'] = base64_encode(serialize($defaults[$property->getName()]));
                }
            } catch (\Throwable $e) {
                $this->notes->exception("default of {$entry['class']}::\${$entry['name']}", $e);
            }
            $list[] = $entry;
        }

        return $list;
    }

    private function ordered(\ReflectionClass $class, $serializesModels)
    {
        // SerializesModels walks what reflection lists: the class's own first,
        // and no private ones of parents.
        if ($serializesModels || PHP_VERSION_ID < 80100) {
            $properties = array_filter($class->getProperties(), function ($property) {
                return ! $property->isStatic();
            });
            for ($parent = $class; ! $serializesModels && ($parent = $parent->getParentClass());) {
                foreach ($this->declared($parent) as $property) {
                    if ($property->isPrivate()) {
                        $properties[] = $property;
                    }
                }
            }

            return array_values($properties);
        }

        // From PHP 8.1 on an object has the properties of its parents first; a property
        // declared again keeps its place.
        $chain = [$class];
        while ($parent = $chain[0]->getParentClass()) {
            array_unshift($chain, $parent);
        }
        $slots = [];
        foreach ($chain as $link) {
            foreach ($this->declared($link) as $property) {
                foreach ($slots as $slot => $known) {
                    if ($known->getName() === $property->getName() && ! $known->isPrivate()) {
                        $slots[$slot] = $property;
                        continue 2;
                    }
                }
                $slots[] = $property;
            }
        }

        return $slots;
    }

    private function declared(\ReflectionClass $class)
    {
        return array_filter($class->getProperties(), function ($property) use ($class) {
            return ! $property->isStatic() && $property->getDeclaringClass()->getName() === $class->getName();
        });
    }

    private function type(\ReflectionProperty $property)
    {
        if (! method_exists($property, 'getType') || ! $property->getType()) {
            return null;
        }
        $type = $property->getType();
        if (! $type instanceof \ReflectionNamedType) {
            return (string) $type;
        }

        return ($type->allowsNull() && ! in_array($type->getName(), ['mixed', 'null'], true) ? '?' : '')
            .$type->getName();
    }

    /** Whether methods of the class give its jobs their group, or the id that makes them one, on SQS. */
    private function groupsItself(\ReflectionClass $class)
    {
        $methods = ['messageGroup', 'deduplicationId', 'deduplicator', 'withMessageGroups', 'withDeduplicators'];

        return version_compare($this->laravel, '12.27', '>=')
            && (bool) array_filter($methods, [$class, 'hasMethod']);
    }

    private function limits(\ReflectionClass $class, $kind)
    {
        $limits = [];
        foreach (self::LIMITS as $name => $sources) {
            $limits[$name] = $this->limit($class, $name, $sources[0], $sources[1]);
        }

        if ($limits['backoff'] === null && version_compare($this->laravel, '8.0', '<')) {
            $limits['backoff'] = $this->limit($class, 'retryAfter', null, ['retryAfter']);
        }
        if ($kind === 'broadcast') {
            $queue = $this->limit($class, 'broadcastQueue', null, ['broadcastQueue']);
            $limits['queue'] = $queue === null ? $limits['queue'] : $queue;
        }
        if ($this->implementing($class, 'Illuminate\Contracts\Queue\ShouldQueueAfterCommit')) {
            $limits['afterCommit'] = true;
        }
        // Before 13 Laravel reads this property by reflection, of any visibility, and asks for the attribute then.
        if (version_compare($this->laravel, '13.0', '<')) {
            $defaults = $this->defaults($class);
            if (isset($defaults['deleteWhenMissingModels'])) {
                $limits['deleteWhenMissingModels'] = Values::plain($defaults['deleteWhenMissingModels']);
            }
        }

        return $limits;
    }

    /** By the framework's own precedence, for a new object of the class. */
    private function limit(\ReflectionClass $class, $property, $attribute, array $methods)
    {
        $default = $this->publicDefault($class, $property);
        if ($property === 'retryUntil' && $default !== null) {
            return Values::plain($default);
        }
        foreach ($methods as $method) {
            if ($class->hasMethod($method) && ! $this->isFrameworks($class, $method)) {
                return ['$method' => true];
            }
        }

        $name = 'Illuminate\Queue\Attributes\\'.$attribute;
        if ($attribute === null || ! method_exists($class, 'getAttributes') || ! class_exists($name)) {
            return Values::plain($default);
        }
        try {
            $found = $this->attribute($class, $name);
        } catch (\Throwable $e) {
            $this->notes->exception("attribute {$attribute} of {$class->getName()}", $e);
            $found = null;
        }
        if ($found === null) {
            return Values::plain($default);
        }

        list($instance, $declaring) = $found;
        if (version_compare($this->laravel, '13.14', '>=') && $class->hasProperty($property)) {
            $reflected = $class->getProperty($property);
            if (
                $reflected->isPublic() && array_key_exists($property, $this->defaults($class))
                && $reflected->getDeclaringClass()->isSubclassOf($declaring)
            ) {
                return Values::plain($default);
            }
        }
        $values = get_object_vars($instance);

        return $values === [] ? true : Values::plain(reset($values));
    }

    /** Before 13 there is only `DeleteWhenMissingModels`, and parents are not asked for it; traits are since 13.16. */
    private function attribute(\ReflectionClass $class, $name)
    {
        $asksParents = version_compare($this->laravel, '13.0', '>=');
        $asksTraits = version_compare($this->laravel, '13.16', '>=');
        do {
            $traits = $asksTraits ? array_values($class->getTraits()) : [];
            foreach (array_merge([$class], $traits) as $place) {
                $attributes = $place->getAttributes($name);
                if (count($attributes) > 0) {
                    return [$attributes[0]->newInstance(), $class->getName()];
                }
            }
        } while ($asksParents && ($class = $class->getParentClass()));

        return null;
    }

    /** The results of methods that are simple enough to compute without PHP. */
    private function methods(\ReflectionClass $class)
    {
        $methods = [];
        foreach (['displayName', 'uniqueId', 'uniqueFor', 'tries', 'backoff', 'retryAfter'] as $name) {
            $returned = $class->hasMethod($name) ? Returned::by($class, $name) : null;
            if ($returned !== null) {
                $methods[$name] = $returned;
            }
        }

        return $methods;
    }

    private function source(\ReflectionClass $class, $name)
    {
        if ($class->hasMethod($name)) {
            return ['method' => true];
        }

        return $class->hasProperty($name) && $class->getProperty($name)->isPublic() ? ['property' => true] : null;
    }

    /** Laravel reads from outside of the class, where only public properties are set. */
    private function publicDefault(\ReflectionClass $class, $property)
    {
        if (! $class->hasProperty($property) || ! $class->getProperty($property)->isPublic()) {
            return null;
        }
        $defaults = $this->defaults($class);

        return isset($defaults[$property]) ? $defaults[$property] : null;
    }

    private function defaults(\ReflectionClass $class)
    {
        try {
            return $class->getDefaultProperties();
        } catch (\Throwable $e) {
            return [];
        }
    }

    /** `Queueable` had a method middleware() that returns an empty list. */
    private function isFrameworks(\ReflectionClass $class, $method)
    {
        $file = (new \ReflectionMethod($class->getName(), $method))->getFileName();

        return is_string($file) && preg_match('~[/\\\\]Illuminate[/\\\\](Bus|Mail|Notifications|Queue)[/\\\\]~', $file);
    }

    /** Laravel's own middleware classes that a method names, in the order of its code. */
    private function named(\ReflectionMethod $method)
    {
        $lines = is_string($method->getFileName()) ? @file($method->getFileName()) : false;
        $lines = $lines === false ? [] : $lines;
        $first = $method->getStartLine() - 1;
        $code = implode('', array_slice($lines, $first, $method->getEndLine() - $first));
        preg_match_all('/\bnew\s+\\\\?(?:\w+\\\\)*(\w+)|(\w+)::/', $code, $matches, PREG_SET_ORDER);
        $names = [];
        foreach ($matches as $match) {
            $name = end($match);
            // Another class may have the same name.
            $import = '~Illuminate\\\\Queue\\\\Middleware\\\\(\{[^}]*\b)?'.$name.'\b~';
            if (preg_match($import, implode('', $lines)) && ! in_array($name, $names, true)) {
                $names[] = $name;
            }
        }

        return $names;
    }

    private function implementing(\ReflectionClass $class, $interface)
    {
        return interface_exists($interface) && $class->implementsInterface($interface);
    }

    /** Types of the parameters of handle() or __invoke(): class names, null for anything else. */
    private function parameters(\ReflectionClass $class)
    {
        foreach (['handle', '__invoke'] as $method) {
            if ($class->hasMethod($method)) {
                return array_map([__CLASS__, 'parameterClass'], $class->getMethod($method)->getParameters());
            }
        }

        return [];
    }

    public static function parameterClass(\ReflectionParameter $parameter)
    {
        $type = $parameter->getType();
        if (! $type || (method_exists($type, 'isBuiltin') && $type->isBuiltin())) {
            return null;
        }
        $name = $type instanceof \ReflectionNamedType ? $type->getName() : (string) $type;
        if ($name === 'self') {
            return $parameter->getDeclaringClass()->getName();
        }

        // `int|string` names no class either.
        $builtin = '/^(array|bool|callable|false|float|int|iterable|mixed|null|object|static|string|true)$/i';
        $classes = preg_grep($builtin, preg_split('/[|&()?]+/', $name, -1, PREG_SPLIT_NO_EMPTY), PREG_GREP_INVERT);

        return $classes === [] ? null : ltrim($name, '?\\');
    }

    private function parents(\ReflectionClass $class)
    {
        $parents = [];
        while ($class = $class->getParentClass()) {
            $parents[] = $class->getName();
        }

        return $parents;
    }

    /** Including those of parents and traits. */
    private function traits(\ReflectionClass $class)
    {
        $names = [];
        $pending = [];
        do {
            $pending = array_merge($pending, array_values($class->getTraits()));
        } while ($class = $class->getParentClass());
        while ($trait = array_shift($pending)) {
            if (! in_array($trait->getName(), $names, true)) {
                $names[] = $trait->getName();
                $pending = array_merge($pending, array_values($trait->getTraits()));
            }
        }

        return $names;
    }

    /** Files that define the class, by path, each with the hash of its contents. */
    private function sources(\ReflectionClass $class, array $traits)
    {
        $names = array_merge([$class->getName()], $this->parents($class), $traits, $class->getInterfaceNames());
        $sources = [$this->relative($class->getFileName()) => hash_file('sha256', $class->getFileName())];
        foreach ($names as $name) {
            $file = (new \ReflectionClass($name))->getFileName();
            // The framework changes with its version, and most of it has nothing to do with queues.
            if (is_file((string) $file) && strpos($name, 'Illuminate\\') !== 0) {
                $sources[$this->relative($file)] = hash_file('sha256', $file);
            }
        }

        return $sources;
    }

    private function relative($file)
    {
        return strpos($file, $this->base.DIRECTORY_SEPARATOR) === 0
            ? strtr(substr($file, strlen($this->base) + 1), '\\', '/')
            : $file;
    }
}

/** What the constructors of a class do that is not in its declarations. */
class Constructor
{
    private $sets = [];

    private $calls = [];

    /** `{"sets": [properties], "calls": [methods of $this with their arguments]}`, or null if there is nothing to say. */
    public static function of(\ReflectionClass $class)
    {
        $found = new self();
        for ($place = $class; $place !== null;) {
            $method = $place->getConstructor();
            // The framework's own is run by Laravel's methods alone.
            if ($method === null || strpos($method->getDeclaringClass()->getName(), 'Illuminate\\') === 0) {
                break;
            }
            $calls_parent = $found->read($method);
            $place = $calls_parent ? ($method->getDeclaringClass()->getParentClass() ?: null) : null;
        }

        return $found->sets === [] && $found->calls === []
            ? null
            : ['sets' => array_keys($found->sets), 'calls' => array_map([Values::class, 'text'], array_keys($found->calls))];
    }

    /** Returns whether it calls that of its parent. */
    private function read(\ReflectionMethod $method)
    {
        $calls_parent = false;
        $tokens = Returned::tokens($method) ?: [];
        $text = function ($place) use ($tokens) {
            return isset($tokens[$place]) ? $tokens[$place][1] : '';
        };
        for ($at = 0; $at < count($tokens); $at++) {
            if ($text($at) === 'parent' && $text($at + 2) === '__construct') {
                $calls_parent = true;
            }
            if ($text($at) !== '$this' || $text($at + 1) !== '->' || ! isset($tokens[$at + 2]) || $tokens[$at + 2][0] !== T_STRING) {
                continue;
            }
            $name = $text($at + 2);
            $next = $text($at + 3);
            if ($next === '(') {
                $this->calls[$name.$this->arguments($tokens, $at + 3)] = true;
            } elseif ($this->isAssignment($tokens, $at + 3) && ! $this->isCopy($method, $name, $text, $at + 3)) {
                $this->sets[$name] = true;
            }
        }

        return $calls_parent;
    }

    /** The arguments of a call as they are written, if they are short. */
    private function arguments(array $tokens, $at)
    {
        $written = '';
        $depth = 0;
        for (; isset($tokens[$at]); $at++) {
            $depth += $tokens[$at][1] === '(' ? 1 : ($tokens[$at][1] === ')' ? -1 : 0);
            $written .= $tokens[$at][1];
            if ($depth === 0) {
                break;
            }
        }

        return strlen($written) > 60 ? '(..)' : $written;
    }

    private function isAssignment(array $tokens, $at)
    {
        // `$this->list[..] = ..` sets a part of it.
        for ($depth = 0; isset($tokens[$at]) && ($depth > 0 || $tokens[$at][1] === '['); $at++) {
            $depth += $tokens[$at][1] === '[' ? 1 : ($tokens[$at][1] === ']' ? -1 : 0);
        }

        return isset($tokens[$at]) && in_array(
            $tokens[$at][1],
            ['=', '+=', '-=', '*=', '/=', '.=', '%=', '**=', '??=', '|=', '&=', '^='],
            true
        );
    }

    /** `$this->name = $name;` of a parameter. */
    private function isCopy(\ReflectionMethod $method, $name, callable $text, $at)
    {
        foreach ($method->getParameters() as $parameter) {
            if ($parameter->getName() === $name) {
                return $text($at) === '=' && $text($at + 1) === '$'.$name && $text($at + 2) === ';';
            }
        }

        return false;
    }
}

/**
 * Reads `return EXPRESSION;` if a method does nothing else, and EXPRESSION is
 * a literal, `$this->property`, or a string made of them.
 */
class Returned
{
    private $class;

    private $tokens;

    private $text = false;

    private function __construct(\ReflectionClass $class, array $tokens)
    {
        $this->class = $class;
        $this->tokens = $tokens;
    }

    /** `{"text":bool,"parts":[{"literal":..}|{"property":NAME}]}`: one part, or the parts of a string. */
    public static function by(\ReflectionClass $class, $name)
    {
        $method = $class->getMethod($name);
        if ($method->isStatic() || $method->isAbstract() || $method->getNumberOfParameters() > 0) {
            return null;
        }
        $tokens = self::tokens($method);
        $returned = $tokens === null ? null : (new self($class, $tokens))->body();

        // A literal need not be UTF-8; then only PHP knows the result.
        return json_encode($returned) === false ? null : $returned;
    }

    /** What follows the name of the method in its source: types and texts, without spaces and comments. */
    public static function tokens(\ReflectionMethod $method)
    {
        $lines = is_string($method->getFileName()) ? @file($method->getFileName()) : false;
        if ($lines === false) {
            return null;
        }
        $first = $method->getStartLine() - 1;
        $code = implode('', array_slice($lines, $first, $method->getEndLine() - $first));
        $tokens = [];
        foreach (@token_get_all("<?php {$code}") as $token) {
            $type = is_array($token) ? $token[0] : $token;
            if (! in_array($type, [T_OPEN_TAG, T_WHITESPACE, T_COMMENT, T_DOC_COMMENT], true)) {
                $tokens[] = [$type, is_array($token) ? $token[1] : $token];
            }
        }
        foreach ($tokens as $place => $token) {
            if ($token[0] === T_FUNCTION && isset($tokens[$place + 1]) && $tokens[$place + 1][1] === $method->getShortName()) {
                return array_slice($tokens, $place + 2);
            }
        }

        return null;
    }

    private function body()
    {
        if (! $this->take('(') || ! $this->take(')')) {
            return null;
        }
        if ($this->take(':')) {
            while ($this->tokens && $this->tokens[0][0] !== '{') {
                array_shift($this->tokens);
            }
        }
        if (! $this->take('{') || ! $this->take(T_RETURN)) {
            return null;
        }
        $parts = $this->expression();

        return $parts !== null && $this->take(';') && $this->take('}')
            ? ['text' => $this->text, 'parts' => $parts]
            : null;
    }

    private function expression()
    {
        $parts = $this->term();
        while ($parts !== null && $this->take('.')) {
            $this->text = true;
            $more = $this->term();
            $parts = $more === null ? null : array_merge($parts, $more);
        }

        return $parts;
    }

    private function term()
    {
        if ($this->take(T_STRING_CAST)) {
            $this->text = true;
        }
        if ($this->isNext('$this')) {
            return $this->property();
        }
        if ($this->take('"')) {
            return $this->interpolated();
        }
        $literal = $this->literal();

        return $literal === null || ($this->text && is_array($literal[0])) ? null : [['literal' => $literal[0]]];
    }

    private function property()
    {
        array_shift($this->tokens);
        if (! $this->take(T_OBJECT_OPERATOR) || ! $this->tokens || $this->tokens[0][0] !== T_STRING) {
            return null;
        }
        $name = array_shift($this->tokens)[1];
        if (! $this->class->hasProperty($name) || $this->class->getProperty($name)->isStatic()) {
            return null;
        }
        $property = $this->class->getProperty($name);

        return method_exists($property, 'hasHooks') && $property->hasHooks() ? null : [['property' => $name]];
    }

    private function interpolated()
    {
        $this->text = true;
        $parts = [];
        while ($this->tokens && ! $this->take('"')) {
            if ($this->tokens[0][0] === T_ENCAPSED_AND_WHITESPACE) {
                $text = array_shift($this->tokens)[1];
                $part = strpos($text, '\\') === false ? [['literal' => $text]] : null;
            } elseif ($this->take(T_CURLY_OPEN)) {
                $part = $this->isNext('$this') ? $this->property() : null;
                $part = $this->take('}') ? $part : null;
            } else {
                $part = $this->isNext('$this') ? $this->property() : null;
            }
            if ($part === null) {
                return null;
            }
            $parts = array_merge($parts, $part);
        }

        return $parts;
    }

    /** The value in an array, since it may be null. */
    private function literal()
    {
        $negative = $this->take('-');
        if (! $this->tokens) {
            return null;
        }
        list($type, $text) = array_shift($this->tokens);
        if ($type === T_LNUMBER) {
            return (string) (int) $text === $text ? [$negative ? -(int) $text : (int) $text] : null;
        }
        if ($negative) {
            return null;
        }
        if ($type === T_CONSTANT_ENCAPSED_STRING && preg_match('/^\'[^\\\\]*\'$|^"[^\\\\$]*"$/D', $text)) {
            return [substr($text, 1, -1)];
        }
        if ($type === T_STRING && in_array(strtolower($text), ['true', 'false', 'null'], true)) {
            return [['true' => true, 'false' => false, 'null' => null][strtolower($text)]];
        }
        if ($type === T_STATIC && $this->take(T_DOUBLE_COLON) && $this->take(T_CLASS)) {
            return [$this->class->getName()];
        }

        return $type === '[' ? $this->items(']') : ($type === T_ARRAY && $this->take('(') ? $this->items(')') : null);
    }

    private function items($end)
    {
        $items = [];
        while (! $this->take($end)) {
            $item = $this->literal();
            if ($item === null || is_array($item[0]) || (! $this->isNext($end) && ! $this->take(','))) {
                return null;
            }
            $items[] = $item[0];
        }

        return [$items];
    }

    private function isNext($text)
    {
        return $this->tokens && $this->tokens[0][1] === $text;
    }

    private function take($type)
    {
        if (! $this->tokens || $this->tokens[0][0] !== $type) {
            return false;
        }
        array_shift($this->tokens);

        return true;
    }
}

class Exporter
{
    const MARK = '---artisand-manifest---';

    const APP_KEYS = ['name', 'env', 'cipher', 'timezone', 'key', 'previous_keys', 'maintenance'];

    private $directory;

    private $options;

    private $notes;

    private $redirects;

    /** Null until there is a result to print. */
    private $result;

    private $finished = false;

    /** The remaining work with the classes that could be loaded. */
    private $unfinished;

    private $doing = 'starting';

    public function __construct($directory, array $options)
    {
        $this->directory = $directory;
        $this->options = $options;
        $this->notes = new Notes();
        $this->redirects = new Redirects();
    }

    public function run()
    {
        // The app may expect a script file, and the working directory of
        // its `artisan`.
        foreach (['STDIN' => 'r', 'STDOUT' => 'w', 'STDERR' => 'w'] as $constant => $mode) {
            if (! defined($constant)) {
                define($constant, fopen('php://'.strtolower($constant), $mode));
            }
        }
        ini_set('memory_limit', '-1');
        ini_set('display_errors', '0');
        ini_set('log_errors', '0');
        ob_start();
        register_shutdown_function([$this, 'shutdown']);

        try {
            $base = realpath($this->directory);
            if (! is_string($base) || ! is_dir($base)) {
                throw new Failure("no directory `{$this->directory}`: give the one that holds the app's `artisan`");
            }
            chdir($base);
            $this->boot($base);
            $this->finish(0);
        } catch (Failure $e) {
            $this->fail($e->getMessage());
        } catch (\Throwable $e) {
            $this->fail("{$this->doing} failed: ".Failures::describe($e).$this->advice());
        }
    }

    /** PHP also calls this when the app ends it: exit(), or an error that cannot be caught. */
    public function shutdown()
    {
        if ($this->finished) {
            return;
        }
        $error = error_get_last();
        $fatal = $error && in_array($error['type'], [E_ERROR, E_PARSE, E_CORE_ERROR, E_COMPILE_ERROR], true);
        $reason = $fatal
            ? Values::text(preg_replace('/\s+/', ' ', $error['message'])." ({$error['file']}:{$error['line']})")
            : 'the app called exit'.$this->printed();

        if ($this->result === null) {
            $this->fail("{$this->doing} ended PHP: {$reason}".$this->advice());
        }
        $this->notes->add("incomplete: {$this->doing} ended PHP: {$reason}");
        // At this point all classes have been seen.
        $this->result['complete'] = $this->doing === 'reading variables';
        if ($this->unfinished) {
            call_user_func($this->unfinished);
        }
        $this->finish(0);
    }

    private function printed()
    {
        $text = trim(preg_replace('/\s+/', ' ', (string) ob_get_contents()));

        return $text === '' ? '' : ' after printing `'.Values::text(substr($text, 0, 300)).'`';
    }

    private function boot($base)
    {
        $composer = $this->composer($base);
        $vendor = isset($composer['config']['vendor-dir']) ? $composer['config']['vendor-dir'] : 'vendor';
        $autoload = $base.'/'.$vendor.'/autoload.php';
        if (! is_file($autoload)) {
            throw new Failure(
                "no `{$vendor}/autoload.php` in {$base}: run `composer install` there, "
                .'or give the directory that holds the app\'s `artisan`'
            );
        }
        if (! is_file($base.'/bootstrap/app.php')) {
            throw new Failure("no `bootstrap/app.php` in {$base}: is this the directory of a Laravel app?");
        }

        // Packages read the command line and expect that of `artisan`.
        $arguments = ['artisan'];
        if ($this->options['env'] !== null) {
            $arguments[] = '--env='.$this->options['env'];
        }
        $_SERVER['argv'] = $arguments;
        $_SERVER['argc'] = count($arguments);
        $GLOBALS['argv'] = $arguments;
        $GLOBALS['argc'] = count($arguments);
        defined('LARAVEL_START') || define('LARAVEL_START', microtime(true));

        if (! $this->options['config_only']) {
            $this->redirects->environment($base);
        }
        $this->doing = 'loading the app';
        require_once $autoload;
        $app = require $base.'/bootstrap/app.php';
        if (! is_object($app) || ! is_a($app, 'Illuminate\Foundation\Application')) {
            throw new Failure(
                "`bootstrap/app.php` in {$base} does not return a Laravel application but "
                .(is_object($app) ? get_class($app) : gettype($app)).': only Laravel 5.5 and later can be exported'
            );
        }
        // Laravel looks twice: now, to skip .env, and again when .env may have
        // named another file.
        $environmentSkipped = is_file($app->getCachedConfigPath());
        $kernel = $app->make('Illuminate\Contracts\Console\Kernel');
        if ($this->options['config_only']) {
            $this->doing = 'loading the configuration';
            $app->bootstrapWith($this->loaders($kernel));
        } else {
            $this->redirects->application($app);
            $this->doing = 'booting the app';
            $kernel->bootstrap();
        }
        // Laravel's handler turns warnings into exceptions and logs deprecations.
        set_error_handler(function () {
            return true;
        });

        $this->doing = 'reading the configuration';
        $cached = is_file($app->getCachedConfigPath()) ? $app->getCachedConfigPath() : null;
        $environment = $app->environmentFilePath();
        $config = $app->make('config');
        $this->result = [
            'artisand' => 1,
            'complete' => true,
            'laravel' => $this->version($app),
            'php' => PHP_VERSION,
            'generated_at' => time(),
            'paths' => [
                'base' => $app->basePath(),
                'storage' => $app->storagePath(),
                'config_cache' => $cached,
                'env_file' => ! $environmentSkipped && is_file($environment) ? $environment : null,
            ],
            'config' => $this->config(function ($key) use ($config) {
                return $config->get($key);
            }),
        ];
        if ($this->options['config_only']) {
            $this->result['config'] += $this->packages($base.'/'.$vendor, $config, $cached !== null);

            return;
        }
        $this->result['config'] += $this->packages($base.'/'.$vendor, $config, true);
        $this->result += [
            'cache_prefixes' => (object) [],
            'limiters' => [],
            'queue_routes' => (object) [],
            'queue_forwards' => (object) [],
            'payload_hooks' => [],
            'code' => null,
            'wrappers' => (object) [],
            'classes' => (object) [],
            'models' => (object) [],
        ];
        if ($environmentSkipped) {
            $this->notes->add("the app uses its cached configuration, {$cached}: its .env file is not read");
        }

        $this->doing = 'reading cache prefixes';
        $this->result['cache_prefixes'] = (object) $this->cachePrefixes($app);
        $this->doing = 'reading rate limiters';
        $this->result['limiters'] = $this->limiters($app);
        $this->doing = 'reading queue routes';
        $this->routes($app);
        $this->doing = 'reading payload hooks';
        $this->result['payload_hooks'] = $this->payloadHooks($app);
        $this->doing = 'reading what the app changes of workers';
        $this->result['code'] = $this->code($app);
        $this->doing = 'reading classes';
        $this->classes($app, $base, $autoload, $composer);
        // This comes last, because loading a configuration file again may end PHP.
        $this->doing = 'reading variables';
        $this->variables($app, $cached);
    }

    /**
     * The bootstrappers that the app's kernel runs before it handles errors and registers
     * facades and providers: LoadEnvironmentVariables, LoadConfiguration, and those that
     * the app adds.
     */
    private function loaders($kernel)
    {
        $method = new \ReflectionMethod($kernel, 'bootstrappers');
        $method->setAccessible(true);
        $loaders = [];
        foreach ($method->invoke($kernel) as $class) {
            if (preg_match('/\\\\(HandleExceptions|SetRequestForConsole|(Register|Boot)[A-Za-z]+)$/', $class)) {
                break;
            }
            $loaders[] = $class;
        }

        return $loaders;
    }

    /**
     * Configuration of the packages that are there, as their providers merge it; without
     * booted providers this is done here, unless a cached configuration has it.
     */
    private function packages($vendor, $config, $merged)
    {
        $packages = [];
        foreach (['horizon' => 'Horizon', 'pulse' => 'Pulse', 'telescope' => 'Telescope'] as $name => $space) {
            $provider = "Laravel\\{$space}\\{$space}ServiceProvider";
            try {
                $file = "{$vendor}/laravel/{$name}/config/{$name}.php";
                if (! is_file($file) && ! class_exists($provider)) {
                    continue;
                }
                if (! is_file($file)) {
                    $file = dirname((new \ReflectionClass($provider))->getFileName(), 2)."/config/{$name}.php";
                }
                $own = (array) $config->get($name, []);
                $packages[$name] = $merged || ! is_file($file) ? $own : array_merge(require $file, $own);
            } catch (\Throwable $e) {
                $this->notes->exception("the configuration of {$name} is not known", $e);
            }
        }

        // The first pattern that matches counts, and only a list keeps its order in JSON.
        $slow = 'Laravel\Pulse\Recorders\SlowJobs';
        if (isset($packages['pulse']['recorders'][$slow]['threshold'])) {
            $threshold = $packages['pulse']['recorders'][$slow]['threshold'];
            $packages['pulse']['recorders'][$slow]['threshold'] = is_array($threshold)
                ? array_map(null, array_keys($threshold), array_values($threshold))
                : $threshold;
        }

        return $this->plain($packages);
    }

    private function config(callable $get)
    {
        return $this->plain($this->parts($get));
    }

    private function plain(array $config)
    {
        if (! $this->options['with_secrets']) {
            $config = (new Secrets($this->notes))->removed($config);
        }

        return Values::plain($config);
    }

    private function parts(callable $get)
    {
        $config = ['app' => []];
        foreach (self::APP_KEYS as $key) {
            $config['app'][$key] = $get('app.'.$key);
        }
        foreach (['queue', 'cache', 'database'] as $file) {
            $config[$file] = $get($file);
        }

        return $config;
    }

    /** The settings that follow the process environment of a worker; none if the configuration is cached. */
    private function variables($app, $cached)
    {
        if ($cached !== null) {
            return;
        }
        $parts = function ($repository) {
            return $this->parts(function ($key) use ($repository) {
                return $repository->get($key);
            });
        };
        try {
            $variables = (new Variables($app, $parts))->ofSettings($parts($app->make('config')));
            $names = [];
            foreach ((array) $variables['settings'] as $facts) {
                $names = array_merge($names, isset($facts['from']) ? $facts['from'] : []);
            }
            $names = array_unique(array_merge($names, $variables['unknown']));
            // The value of a short secret could be guessed from its hash: what is made of one counts as unknown where
            // it is set.
            if (! $this->options['with_secrets']) {
                $names = preg_grep('/PASSWORD|KEY|SECRET|TOKEN|AUTH|URL|DSN/i', $names, PREG_GREP_INVERT);
            }
            $this->result['variables'] = $variables + Variables::marks($names);
        } catch (\Throwable $e) {
            $this->notes->exception('which variables settings come from is not known', $e);
        }
    }

    private function cachePrefixes($app)
    {
        $prefixes = [];
        foreach ((array) $app->make('config')->get('cache.stores') as $name => $store) {
            $driver = is_array($store) && isset($store['driver']) ? $store['driver'] : null;
            if (! in_array($driver, ['redis', 'database', 'memcached'], true)) {
                continue;
            }
            try {
                $prefixes[$name] = Values::plain((string) ($driver === 'redis'
                    ? $app->make('cache')->store($name)->getStore()->getPrefix()
                    : $this->unconnectedPrefix($app, $store, 'Illuminate\Cache\\'.ucfirst($driver).'Store')));
            } catch (\Throwable $e) {
                $this->notes->exception("cache store {$name} has no prefix here", $e);
            }
        }

        return $prefixes;
    }

    /**
     * Making a memcached store needs its extension, making a database store on
     * SQLite connects on some versions.
     */
    private function unconnectedPrefix($app, array $config, $class)
    {
        $manager = $app->make('cache');
        $method = new \ReflectionMethod($manager, 'getPrefix');
        $method->setAccessible(true);
        $prefix = $method->invoke($manager, $config);

        $store = (new \ReflectionClass($class))->newInstanceWithoutConstructor();
        if (method_exists($store, 'setPrefix')) {
            $store->setPrefix($prefix);
        } else {
            $property = new \ReflectionProperty($class, 'prefix');
            $property->setAccessible(true);
            $property->setValue($store, $prefix);
        }

        return $store->getPrefix();
    }

    private function limiters($app)
    {
        try {
            $limiter = $app->make('Illuminate\Cache\RateLimiter');

            return array_map('strval', array_keys((array) $this->property($limiter, 'limiters')));
        } catch (\Throwable $e) {
            $this->notes->exception('rate limiters are not known', $e);

            return [];
        }
    }

    /** Where the app or a package adds fields to payloads; the framework's own fields are known. */
    private function payloadHooks($app)
    {
        $hooks = [];
        try {
            // Packages add their hooks when the queue is first used.
            $app->make('queue');
            $property = new \ReflectionProperty('Illuminate\Queue\Queue', 'createPayloadCallbacks');
            $property->setAccessible(true);
            foreach ((array) $property->getValue() as $callback) {
                $name = $this->owner($callback);
                if (strpos($name, 'Illuminate\\') !== 0) {
                    $hooks[] = $name;
                }
            }
        } catch (\Throwable $e) {
            $this->notes->exception('payload hooks are not known', $e);
        }

        return $hooks;
    }

    /** Settings that the app makes in code and that Laravel's workers and commands obey. */
    private function code($app)
    {
        $code = ['pop_using' => [], 'exit_codes' => [], 'unpolled' => [], 'pipes' => [], 'prohibited' => []];
        $code['names_masters'] = false;
        try {
            $worker = 'Illuminate\Queue\Worker';
            $code['pop_using'] = array_map('strval', array_keys((array) $this->shared($worker, 'popCallbacks')));
            foreach (['memoryExceededExitCode', 'timedOutExitCode'] as $name) {
                if ($this->shared($worker, $name) !== null) {
                    $code['exit_codes'][] = $name;
                }
            }
            // `Queue::withoutInterruptionPolling()`.
            foreach (['restartable' => 'restart', 'pausable' => 'pause'] as $name => $signal) {
                if ($this->shared($worker, $name) === false) {
                    $code['unpolled'][] = $signal;
                }
            }
            $pipes = $this->property($app->make('Illuminate\Contracts\Bus\Dispatcher'), 'pipes');
            foreach ((array) $pipes as $pipe) {
                $code['pipes'][] = $this->owner($pipe);
            }
            foreach (['queue:clear' => 'ClearCommand', 'queue:flush' => 'FlushFailedCommand'] as $command => $class) {
                if ($this->shared('Illuminate\Queue\Console\\'.$class, 'prohibitedFromRunning') === true) {
                    $code['prohibited'][] = $command;
                }
            }
            $code['names_masters'] = $this->shared('Laravel\Horizon\MasterSupervisor', 'nameResolver') !== null;
        } catch (\Throwable $e) {
            $this->notes->exception('what the app changes of workers is not known', $e);
        }

        return $code;
    }

    /** A static property; null if this version has none. */
    private function shared($class, $name)
    {
        if (! property_exists($class, $name)) {
            return null;
        }
        $property = new \ReflectionProperty($class, $name);
        $property->setAccessible(true);

        return $property->getValue();
    }

    /** The class that a callable belongs to, or the name of a function. */
    private function owner($callable)
    {
        if ($callable instanceof \Closure) {
            $class = (new \ReflectionFunction($callable))->getClosureScopeClass();

            return $class ? $class->getName() : 'a closure';
        }
        $callable = is_array($callable) ? reset($callable) : $callable;

        return is_object($callable) ? get_class($callable) : (string) $callable;
    }

    /** Laravel 13 can send classes and queues elsewhere in code. */
    private function routes($app)
    {
        if (! $app->bound('queue.routes')) {
            return;
        }
        try {
            $routes = $app->make('queue.routes');
            $this->result['queue_routes'] = (object) Values::plain((array) $this->property($routes, 'routes'));
            $this->result['queue_forwards'] = (object) Values::plain((array) $this->property($routes, 'forwards'));
        } catch (\Throwable $e) {
            $this->notes->exception('queue routes are not known', $e);
        }
    }

    private function classes($app, $base, $autoload, array $composer)
    {
        $sources = new Sources($base);
        $describer = new Classes($base, $this->result['laravel'], $this->notes);
        $this->result['wrappers'] = (object) $describer->wrappers();
        list($listeners, $events) = $this->registered($app);
        $kinds = [];
        $models = [];
        $this->unfinished = function () use ($describer, $sources, &$kinds, &$models, &$events, $listeners) {
            $this->unfinished = null;
            $this->result['models'] = (object) $models;
            $this->describe($describer, $sources, $kinds, $events, $listeners);
        };

        $own = $sources->classes($composer);
        $own = (new Probe($autoload, $this->notes))->survivors($own, $own);
        // A package may contain classes for other packages that are not installed here: no remark about those.
        $unsaid = new Notes();
        $packages = (new Probe($autoload, $unsaid))->survivors($sources->queuedOfPackages($this->notes), []);
        foreach ($own + $packages as $name => $file) {
            $this->doing = "loading {$name} from {$file}";
            $notes = isset($own[$name]) ? $this->notes : $unsaid;
            try {
                if (! class_exists($name)) {
                    $notes->add("{$file}: no autoloader finds its class {$name}, so it cannot be queued");
                    continue;
                }
                $class = new \ReflectionClass($name);
                if ($class->isAbstract() || realpath($class->getFileName()) !== $file) {
                    continue;
                }
                $name = $class->getName();
                if ($class->isSubclassOf('Illuminate\Database\Eloquent\Model')) {
                    $model = $describer->model($class);
                    if ($model !== null) {
                        $models[$name] = $model;
                    }
                }
                $kind = $this->kind($class, isset($listeners[$name]));
                if ($kind === 'listener') {
                    $events = array_merge($events, $this->handled($class));
                }
                $kinds[$name] = [$kind, $class];
            } catch (\Throwable $e) {
                $notes->exception("{$file}: {$name} was left out", $e);
            }
        }

        call_user_func($this->unfinished);
    }

    private function describe(Classes $describer, Sources $sources, array $kinds, array $events, array $listeners)
    {
        // Events travel inside the jobs of their listeners.
        foreach (array_unique($events) as $event) {
            $this->doing = "loading the event {$event}";
            try {
                if (! isset($kinds[$event]) && class_exists($event)) {
                    $class = new \ReflectionClass($event);
                    if (! $class->isAbstract() && $sources->isOurs($class->getFileName())) {
                        $kinds[$event] = [null, $class];
                    }
                }
            } catch (\Throwable $e) {
                $this->notes->exception("{$event} was left out", $e);
            }
            if (isset($kinds[$event]) && $kinds[$event][0] === null) {
                $kinds[$event][0] = 'event';
            }
        }
        ksort($kinds, SORT_STRING);
        $classes = [];
        foreach ($kinds as $name => $entry) {
            if ($entry[0] === null) {
                continue;
            }
            $this->doing = "describing {$name}";
            try {
                $listens = isset($listeners[$name]) ? $listeners[$name] : [];
                $described = $describer->describe($entry[1], $entry[0], $listens);
                $described['flags']['package'] = ! $sources->isOurs($entry[1]->getFileName());
                // Names in source need not be UTF-8; one such class must not cost the others.
                if (json_encode([$name => $described]) === false) {
                    $this->notes->add("{$name} was left out, it has no form in JSON: ".json_last_error_msg());
                    continue;
                }
                $classes[$name] = $described;
            } catch (\Throwable $e) {
                $this->notes->exception("{$name} was left out", $e);
            }
            $this->result['classes'] = (object) $classes;
        }
    }

    private function kind(\ReflectionClass $class, $registered)
    {
        $queued = $class->implementsInterface('Illuminate\Contracts\Queue\ShouldQueue');
        if (class_exists('Illuminate\Notifications\Notification')
            && $class->isSubclassOf('Illuminate\Notifications\Notification')) {
            return 'notification';
        }
        if (class_exists('Illuminate\Mail\Mailable') && $class->isSubclassOf('Illuminate\Mail\Mailable')) {
            return 'mailable';
        }
        if ($registered || (Sources::isListenerFile($class->getFileName()) && $this->handled($class) !== [])) {
            return 'listener';
        }
        if ($class->implementsInterface('Illuminate\Contracts\Broadcasting\ShouldBroadcast')) {
            return 'broadcast';
        }

        return $queued ? 'job' : null;
    }

    /** The class names of the first parameter of a listener's method. */
    private function handled(\ReflectionClass $class)
    {
        foreach (['handle', '__invoke'] as $method) {
            if ($class->hasMethod($method)) {
                $parameters = $class->getMethod($method)->getParameters();
                $first = $parameters === [] ? null : Classes::parameterClass($parameters[0]);

                return $first === null ? [] : preg_split('/[|&()?]+/', $first, -1, PREG_SPLIT_NO_EMPTY);
            }
        }

        return [];
    }

    /**
     * From the event dispatcher: class => its events and methods, and the names
     * of all events. Older versions keep closures, with the listener inside.
     */
    private function registered($app)
    {
        $listeners = [];
        $events = [];
        foreach (['listeners', 'wildcards'] as $property) {
            try {
                $entries = (array) $this->property($app->make('events'), $property);
            } catch (\Throwable $e) {
                $this->notes->exception('listeners are known only from their directories', $e);
                continue;
            }
            foreach ($entries as $event => $list) {
                $events[] = $event;
                foreach ((array) $list as $listener) {
                    if ($listener instanceof \Closure) {
                        $variables = (new \ReflectionFunction($listener))->getStaticVariables();
                        $listener = isset($variables['listener']) ? $variables['listener'] : null;
                    }
                    if (is_string($listener)) {
                        $listener = explode('@', $listener, 2);
                    }
                    if (! is_array($listener) || ! isset($listener[0])) {
                        continue;
                    }
                    $class = is_object($listener[0]) ? get_class($listener[0]) : ltrim($listener[0], '\\');
                    $method = isset($listener[1]) && is_string($listener[1]) ? $listener[1] : 'handle';
                    $entry = ['event' => (string) $event, 'method' => $method];
                    if (! isset($listeners[$class]) || ! in_array($entry, $listeners[$class], true)) {
                        $listeners[$class][] = $entry;
                    }
                }
            }
        }

        return [$listeners, $events];
    }

    private function property($object, $name)
    {
        $class = new \ReflectionClass($object);
        while (! $class->hasProperty($name)) {
            $class = $class->getParentClass();
            if (! $class) {
                return null;
            }
        }
        $property = $class->getProperty($name);
        $property->setAccessible(true);

        return $property->getValue($object);
    }

    private function composer($base)
    {
        $composer = is_file($base.'/composer.json')
            ? json_decode((string) file_get_contents($base.'/composer.json'), true)
            : null;
        if (! is_array($composer)) {
            $this->notes->add("no readable composer.json in {$base}: classes are looked for where the loader does");
        }

        return is_array($composer) ? $composer : [];
    }

    private function version($app)
    {
        $class = new \ReflectionClass('Illuminate\Foundation\Application');

        return $class->hasConstant('VERSION') ? $class->getConstant('VERSION') : $app->version();
    }

    private function advice()
    {
        return strpos($this->doing, 'loading the app') === 0 || strpos($this->doing, 'booting') === 0
            ? ' -- `php artisan list` in the app\'s directory should work first'
            : '';
    }

    private function finish($status)
    {
        $this->result['notes'] = $this->notes->list;
        $flags = JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE | JSON_PRESERVE_ZERO_FRACTION;
        $json = json_encode($this->result, $flags);
        if ($json === false) {
            $this->fail('the result is not JSON: '.json_last_error_msg());
        }
        $this->end();
        $output = fopen('php://stdout', 'wb');
        fwrite($output, "\n".self::MARK."\n".$json."\n".self::MARK."\n");
        fclose($output);
        exit($status);
    }

    private function fail($message)
    {
        $this->end();
        fwrite(fopen('php://stderr', 'wb'), 'manifest: '.$message."\n");
        exit(1);
    }

    /** Hides everything that the app does from here on. */
    private function end()
    {
        $this->finished = true;
        $this->redirects->remove();
        while (ob_get_level() > 0 && @ob_end_clean()) {
            continue;
        }
        ob_start(function () {
            return '';
        });
    }

    public static function main(array $arguments)
    {
        $options = ['with_secrets' => false, 'config_only' => false, 'env' => null];
        $rest = [];
        foreach ($arguments as $argument) {
            if ($argument === '--with-secrets') {
                $options['with_secrets'] = true;
            } elseif ($argument === '--config-only') {
                $options['config_only'] = true;
            } elseif (strpos($argument, '--env=') === 0) {
                $options['env'] = substr($argument, 6);
            } elseif ($argument !== '--') {
                $rest[] = $argument;
            }
        }
        if (count($rest) > 1 || preg_grep('/^-/', $rest)) {
            fwrite(
                fopen('php://stderr', 'wb'),
                "manifest: usage: php manifest.php [APP_DIR] [--with-secrets] [--env=NAME] [--config-only]\n"
            );
            exit(1);
        }

        (new self($rest === [] ? '.' : $rest[0], $options))->run();
    }
}

Exporter::main(array_slice($_SERVER['argv'], 1));
