<?php

require_once '/usr/share/php/Illuminate/autoload.php';

spl_autoload_register(static function (string $class): void {
    $file = __DIR__.'/../app/'.strtr(substr($class, 4), '\\', '/').'.php';
    if (strncmp($class, 'App\\', 4) === 0 && is_file($file)) {
        require $file;
    }
});
