<?php

return require dirname(__DIR__).'/bootstrap.php';
