<?php

require_once '/usr/share/php/Illuminate/autoload.php';

spl_autoload_register(static function (string $class): void {
    if (str_starts_with($class, 'App\\')) {
        $file = dirname(__DIR__).'/src/'.strtr(substr($class, 4), '\\', '/').'.php';
        if (is_file($file)) {
            require $file;
        }
    }
});
