<?php

namespace App\Models;

use Illuminate\Database\Eloquent\Collection;

class PostCollection extends Collection {}
