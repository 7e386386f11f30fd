<?php

namespace Composer\Autoload;

/** As much of Composer's loader as manifest.php asks, for an app that Composer did not install. */
final class ClassLoader
{
    /**
     * @param array<string, list<string>> $directories namespace => directories
     * @param array<string, string> $files class => file
     */
    public function __construct(private array $directories, private array $files)
    {
    }

    public function getPrefixesPsr4(): array
    {
        return $this->directories;
    }

    public function getPrefixes(): array
    {
        return [];
    }

    public function getClassMap(): array
    {
        return $this->files;
    }

    public function loadClass(string $class): void
    {
        if (isset($this->files[$class])) {
            require $this->files[$class];

            return;
        }
        foreach ($this->directories as $namespace => $directories) {
            if (! str_starts_with($class, $namespace)) {
                continue;
            }
            foreach ($directories as $directory) {
                $file = $directory.'/'.strtr(substr($class, strlen($namespace)), '\\', '/').'.php';
                if (is_file($file)) {
                    require $file;

                    return;
                }
            }
        }
    }
}
